"""Drawings of MuJoCo bodies made of capsules and spheres, without GPU or display."""

import matplotlib.colors
import matplotlib.figure
import mujoco
import numpy as np
from matplotlib.collections import LineCollection

from showing import BLUE, GRID, INK, ORANGE, RED, plain

# Orthographic, from the side and a little from above.
TURN, TILT = np.deg2rad(35), np.deg2rad(14)
RIGHT = np.array([np.cos(TURN), np.sin(TURN), 0])
UP = np.array([np.sin(TURN) * np.sin(TILT), -np.cos(TURN) * np.sin(TILT), np.cos(TILT)])
AWAY = np.cross(UP, RIGHT)

COLUMNS = 6
THROWN = 0.05  # metres
COLORS = {"before": INK, "held out": INK, "without": ORANGE, "with": BLUE}
LABELS = {
    "held out": "held-out poses",
    "without": "decoded by the plain VAE",
    "with": "decoded by the VAE with the simulator in its loss",
}
RUNS = {"before": None, "without": "plain VAE", "with": "with the simulator"}


def draw(model, history, films):
    """Return a figure of 1800 x 960 pixels: bodies let go, and the loss curves."""
    figure = matplotlib.figure.Figure(figsize=(12, 6.4), dpi=150)
    bodies, curves = figure.subfigures(1, 2, squeeze=False, width_ratios=(9, 3))[0]
    draw_bodies(bodies, model, films)
    draw_curves(curves, history)
    return figure


# --- bodies --------------------------------------------------------------------------


def draw_bodies(figure, model, films):
    height = 0.29
    for row, (name, label) in enumerate(LABELS.items()):
        seen, rise = films[name]
        bottom = 0.925 - (row + 1) * (height + 0.015)
        for column, index in enumerate(choose(films)):
            place = (0.01 + column / COLUMNS, bottom, 1 / COLUMNS, height)
            axes = figure.add_axes(place)
            axes.set_axis_off()
            ends, radii = capsules(model, seen, index)
            draw_fall(axes, ends, radii, COLORS[name])
        count = f"{np.sum(rise > THROWN)} of {len(rise)} are thrown up by 5 cm"
        style = {"color": COLORS[name], "fontsize": 11}
        figure.text(0.025, bottom + height - 0.02, f"{label}: {count}", **style)
    title = "let go in MuJoCo: pale at the start, red in the floor; dark 0.25 s later"
    figure.text(0.025, 0.95, title, color=INK, fontsize=12)


def choose(films):
    """Return poses from all over those that the plain VAE has thrown up."""
    _, rise = films["without"]
    order = np.argsort(-np.asarray(rise))
    thrown = max(int(np.sum(rise > THROWN)), COLUMNS)
    return order[np.linspace(0, thrown - 1, COLUMNS + 2).astype(int)[1:-1]]


def capsules(model, seen, index):
    """Return ends, shape `(frames, geoms, 2, 3)`, and radii of a body's geoms."""
    kept = np.flatnonzero(model.geom_type != int(mujoco.mjtGeom.mjGEOM_PLANE))
    is_long = model.geom_type[kept] == int(mujoco.mjtGeom.mjGEOM_CAPSULE)
    half = np.where(is_long, model.geom_size[kept, 1], 0)
    middle = np.asarray(seen["geom_xpos"])[:, index, kept]
    axis = np.asarray(seen["geom_xmat"])[:, index, kept, 2::3]
    offset = half[:, None] * axis
    return np.stack([middle - offset, middle + offset], 2), model.geom_size[kept, 0]


def draw_fall(axes, ends, radii, color):
    """Draw the first and the last frame, with their shadows."""
    box = axes.get_window_extent()
    wide = 1.65  # metres
    tall = wide * box.height / box.width
    centre = ends[0].mean(axis=(0, 1)) * np.array([1, 1, 0])
    axes.set_xlim(centre @ RIGHT - wide / 2, centre @ RIGHT + wide / 2)
    axes.set_ylim(centre @ UP - 0.2 * tall, centre @ UP + 0.8 * tall)
    pen = box.width / axes.figure.dpi * 72 / wide
    for frame in (0, -1):
        for one, radius in zip(ends[frame], radii, strict=True):
            stroke(axes, one * np.array([1, 1, 0]), pen * radius, GRID)
    for frame, paleness in ((0, 0.65), (-1, 0.0)):
        depth = (ends[frame] @ AWAY).mean(axis=-1)
        far = (depth - depth.min()) / max(np.ptp(depth), 1e-6)
        for geom in np.argsort(-depth):
            one, radius = ends[frame, geom], radii[geom]
            stroke(axes, one, pen * (radius + 0.012), "white")
            paler = paleness + (1 - paleness) * 0.35 * far[geom]
            stroke(axes, one, pen * radius, mix(color, paler))
            if frame == 0 and (part := below(one, -radius / 2)) is not None:
                stroke(axes, part, pen * radius, mix(RED, 0.25))


def below(ends, height):
    """Return the part of a line that is lower than so, or None."""
    low, high = ends[np.argsort(ends[:, 2])]
    if low[2] >= height:
        return None
    share = 1.0 if high[2] <= height else (height - low[2]) / (high[2] - low[2])
    return np.stack([low, low + share * (high - low)])


def stroke(axes, ends, radius, color):
    line = np.stack([ends @ RIGHT, ends @ UP], axis=-1)
    line[1, 0] += 1e-4  # a line of no length would not be drawn
    drawn = LineCollection(
        [line],
        linewidths=2 * radius,
        colors=[color],
        capstyle="round",
        clip_on=False,
    )
    axes.add_collection(drawn, autolim=False)


def mix(color, share):
    """Return a colour with this share of white."""
    rgb = np.array(matplotlib.colors.to_rgb(color))
    return tuple(rgb + share * (1 - rgb))


# --- curves --------------------------------------------------------------------------


def draw_curves(figure, history):
    place = {"left": 0.16, "right": 0.95, "bottom": 0.09, "top": 0.93, "hspace": 0.55}
    curves = {
        "VAE loss, training": lambda metrics, score: metrics.vae,
        "error of held-out joints, degrees": lambda metrics, score: score.degrees,
        "physics loss, held out": lambda metrics, score: score.physics,
    }
    fork = len(history["before"])
    places = figure.subplots(3, 1, gridspec_kw=place, sharex=True)
    for axes, (title, read) in zip(places, curves.items(), strict=True):
        for run, epochs in history.items():
            values = [float(read(*epoch)) for epoch in epochs]
            x = np.arange(len(values)) + (1 if run == "before" else fork + 1)
            style = {"color": COLORS[run], "marker": "o", "markersize": 4}
            axes.plot(x, values, markevery=[-1], label=RUNS[run], **style)
        axes.axvline(fork + 0.5, color=INK, linewidth=0.8, linestyle=":")
        axes.set_title(title, color=INK, loc="left", fontsize=10)
        axes.set_ylim(bottom=0)
        plain(axes)
    style = {"labelcolor": INK, "fontsize": 9, "handlelength": 1.2}
    frame = {"framealpha": 1, "edgecolor": "white", "borderaxespad": 0.1}
    places[0].legend(loc="lower right", **style, **frame)
    places[-1].set_xlabel("epoch", color=INK)
