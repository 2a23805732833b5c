"""A module of flax that can be pickled; imported only where flax is installed."""

from flax import linen


class Scaled(linen.Module):
    width: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.width)(x)
