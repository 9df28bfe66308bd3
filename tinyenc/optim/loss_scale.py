"""Training in half precision: the factor on the loss."""

import math


class LossScale:
    """A factor on the loss, for gradients that would be 0 in half precision (Micikevicius et al. 2018, section 3.3).

    Gradients are divided by it before they are clipped. Where they are not finite the step is skipped, weights,
    moments, step count and learning rate as before, and the factor halves; it doubles after grow_after steps in a row
    that were not. A power of two, it changes no digit of a gradient.

        model = model.astype(np.float16)
        fit(model, loss, batches, AdamW(model, 1e-3), n_epochs=3, loss_scale=LossScale())
    """

    LARGEST = 2.0**32

    def __init__(self, factor=2.0**16, grow_after=2000):
        if not 1 <= factor <= self.LARGEST:
            raise ValueError(f"the factor of a loss scale must be from 1 to 2**32, got {factor}")
        if grow_after < 1:
            raise ValueError(f"grow_after must be at least 1, got {grow_after}")
        self.factor = float(factor)
        self.grow_after = grow_after
        self.n_good = 0  # steps since the factor changed or one was skipped

    def step(self, optimizer, max_norm=math.inf):
        """optimizer.step on gradients that are those of the loss times factor; returns the norm of the loss's own.

        FloatingPointError: they are not finite although the factor is 1. Then, too, nothing was changed.
        """
        norm = optimizer.step(max_norm, self.factor)
        if math.isfinite(norm):
            self.n_good += 1
            if self.n_good >= self.grow_after:
                self.factor = min(2 * self.factor, self.LARGEST)
                self.n_good = 0
        elif self.factor > 1:
            self.factor = max(1.0, self.factor / 2)
            self.n_good = 0
        else:
            raise FloatingPointError(f"the gradient norm is {norm} at step {optimizer.n_steps + 1} although the loss "
                                     "scale is 1: it is beyond the range of half precision, or not a number")
        return norm

    def state_dict(self):
        """What it takes to go on, as plain numbers."""
        return {"factor": self.factor, "n_good": self.n_good}

    def load_state_dict(self, state):
        """Go on from a state; ValueError names what it lacks, and then nothing was changed."""
        missing = [name for name in ("factor", "n_good") if name not in state]
        if missing:
            raise ValueError(f"the state of the loss scale lacks {', '.join(missing)}")
        self.factor, self.n_good = float(state["factor"]), int(state["n_good"])
