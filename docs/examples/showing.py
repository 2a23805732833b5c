"""What the training examples share: colours, progress, files."""

import contextlib
import os

import rich.progress

INK, GRID, BLUE, ORANGE, RED = "#33373d", "#e6e8eb", "#3b6fb6", "#e08a2c", "#c2412d"


@contextlib.contextmanager
def progress(console, total, unit="epoch", done=0):
    """Yield a function that shows a text for each unit: in a bar, or as log lines."""
    if console.is_terminal:
        columns = (
            rich.progress.TextColumn(unit),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.TimeElapsedColumn(),
        )
        with rich.progress.Progress(*columns, console=console, expand=True) as bar:
            task = bar.add_task("compiling", total=total, completed=done)
            yield lambda text: bar.update(task, description=text, advance=1)
    else:
        counts = iter(range(done + 1, total + 1))

        def line(text):
            count = next(counts)
            if count in (1, total) or count % 10 == 0:
                print(f"{unit} {count:3}/{total}  {text}", flush=True)

        yield line


def forget(saves):
    """Remove the checkpoints of the run before: one that starts anew wants none."""
    for step in saves.steps:
        saves.path(step).unlink()


def plain(axes):
    """Give axes the look of all the pictures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(INK)
    axes.tick_params(which="both", colors=INK)
    axes.grid(color=GRID, linewidth=0.8)


def save(figure, path):
    """Write a figure so that `path` is the old picture or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        figure.savefig(part, format="png")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
