"""What every update rule shares: steps, learning rates, clipping, half precision, saved state."""

import math
import warnings

import numpy as np

from ..backend import like, on_host, to_host, wide
from ..schedules import constant, not_negative
from .blocks import in_all_blocks
from .clip import clip_scale, grad_norm
from .parameters import named_parameters


class Optimizer:
    """Moves parameters by their gradients. A rule is a subclass: the arrays it `keeps`, and `update`.

    parameters: a Layer, or a list of Parameters and Layers. A shared Parameter is one parameter. One whose
    `frozen` is True at a step is left alone by it; one that got no gradient has a gradient of zeros.
    lr: a number, or a schedule: a function of the step, counted from 1.
    lr_scales: [(part, factor), ...] multiplies lr in some parts, each a Layer, a Parameter or a list of them:
    `[(layer, 0.9 ** depth) for depth, layer in enumerate(reversed(encoder.layers))]`.

    Weight decay, where a rule has it, applies to the parameters whose `decay` is True: weight matrices, not
    biases, norms and embeddings.

    Half-precision parameters are trained in float32: an exact copy, "master", takes the small steps and is
    rounded into the parameter. Values written into the parameter from outside (loaded, say) replace the
    copy's. Gradients are only read.
    """

    keeps = ()  # names of the arrays kept for each parameter: zeros at first, float32 or wider
    weight_decay = 0.0

    def __init__(self, parameters, lr, lr_scales=()):
        self.parameters = named_parameters(parameters)
        if not self.parameters:
            raise ValueError(f"{type(self).__name__} was given no parameters")
        self.schedule = lr if callable(lr) else constant(not_negative("lr", lr))
        self.n_steps = 0
        self.n_skipped = 0
        self._lr_scales = _by_name(lr_scales, self.parameters)
        self._steps = dict.fromkeys(self.parameters, 0)  # steps each was moved by: fewer, where it was frozen
        self._kept = {name: {} for name in self.parameters}

    def update(self, w, g, *kept, lr, decay, t):
        """Change a block of weights w, and of the arrays this rule keeps, in place by their gradients g.

        decay: the weight decay, 0 where the parameter has none. t: the parameter's own step, from 1.
        """
        raise NotImplementedError

    @property
    def lr(self):
        """The learning rate of the last step, before lr_scales; None before the first."""
        return self._rate(self.n_steps) if self.n_steps else None

    def step(self, max_norm=None, loss_scale=1.0):
        """Move every parameter once. Does not wait for the GPU, except with max_norm.

        max_norm: scale the gradients by min(1, max_norm / norm), as `clip_grad_norm`, and return the norm.
        Where it is not finite, the step is skipped with a RuntimeWarning: nothing changes but `n_skipped`, and
        the next step is what this one would have been. math.inf checks without clipping.
        loss_scale: what the gradients are divided by first. Above 1, a skipped step is no news (see LossScale).
        """
        trained = {name: p for name, p in self.parameters.items() if not p.frozen}
        norm, scale = None, 1 / loss_scale
        if max_norm is not None:
            norm = grad_norm(trained.values()) / loss_scale
            scale = clip_scale(norm, max_norm) / loss_scale
            if not math.isfinite(norm):
                self.n_skipped += 1
                if loss_scale == 1:
                    warnings.warn(f"step {self.n_steps + 1} skipped: the gradient norm is {norm}", RuntimeWarning, 2)
                return norm
        lr = self._rate(self.n_steps + 1)
        self.n_steps += 1
        in_all_blocks([self._move(name, parameter, lr, scale) for name, parameter in trained.items()])
        return norm

    def _rate(self, step):
        rate = float(self.schedule(step))
        if not 0 <= rate < math.inf:
            raise ValueError(f"the schedule gives a learning rate of {rate} at step {step}")
        return rate

    def _move(self, name, parameter, lr, scale):
        """The next move of one parameter, as a formula for blocks and the arrays it is for."""
        self._steps[name] += 1
        kept = self._arrays(name)
        lr = lr * self._lr_scales.get(name, 1.0)
        decay = self.weight_decay if parameter.decay else 0.0
        t = self._steps[name]

        def move(w, g, *kept):
            if scale != 1:
                g = g * scale
            self.update(w, g, *kept, lr=lr, decay=decay, t=t)

        def move_half(half, g, w, *kept):
            np.copyto(w, half, where=half != w.astype(half.dtype))  # at first, or written from outside
            move(w, g, *kept)
            half[...] = w

        return move_half if "master" in kept else move, parameter.data, parameter.grad, *kept.values()

    def _keys(self, parameter):
        return self.keeps if parameter.data.dtype == wide(parameter.data.dtype) else ("master", *self.keeps)

    def _arrays(self, name):
        """{key: array}, "master" first, kept for a parameter: zeros when first asked for, and moved to where it is."""
        parameter, old = self.parameters[name], self._kept[name]
        self._kept[name] = {key: _beside(parameter.data, old[key]) if key in old
                            else np.zeros_like(parameter.data, dtype=wide(parameter.data.dtype))
                            for key in self._keys(parameter)}
        return self._kept[name]

    def reshape(self, parameter, change):
        """Do with everything kept for a parameter what is done with its data: replace each array by change(array)."""
        for name, own in self.parameters.items():
            if own is parameter:
                self._kept[name] = {key: change(array) for key, array in self._kept[name].items()}
                return
        raise ValueError(f"{parameter} is not among the optimiser's parameters")

    def state_dict(self):
        """{"step", and for every parameter "NAME.steps" and "NAME.ARRAY": a copy, as a NumPy array}.

        Names are the model's where a Layer was given, else places in the list. Parameters that are frozen and
        have never moved are left out.
        """
        state = {"step": np.array(self.n_steps)}
        for name, parameter in self.parameters.items():
            if self._steps[name] or not parameter.frozen:
                state[f"{name}.steps"] = np.array(self._steps[name])
                state |= {f"{name}.{key}": np.array(to_host(a)) for key, a in self._arrays(name).items()}
        return state

    def load_state_dict(self, state):
        """Go on from a state: the next step is the one that would have followed it.

        The settings (learning rate, betas, ...) are the constructor's. ValueError names every missing,
        unexpected and mis-shaped entry; then nothing was changed.
        """
        shapes = {"step": ()}
        for name, parameter in self.parameters.items():
            entries = {f"{name}.steps": ()} | {f"{name}.{key}": parameter.shape for key in self._keys(parameter)}
            if not parameter.frozen or any(entry in state for entry in entries):
                shapes |= entries
        wrong = [f"missing {entry}" for entry in shapes if entry not in state]
        wrong += [f"unexpected {entry}" for entry in state if entry not in shapes]
        wrong += [f"{entry} has shape {np.shape(state[entry])}, not {shape}" for entry, shape in shapes.items()
                  if entry in state and np.shape(state[entry]) != shape]
        if wrong:
            raise ValueError(f"the state does not fit this {type(self).__name__}: " + "; ".join(wrong))

        self.n_steps = int(state["step"])
        for name, parameter in self.parameters.items():
            saved = f"{name}.steps" in state
            self._steps[name] = int(state[f"{name}.steps"]) if saved else 0
            self._kept[name] = {key: _beside(parameter.data, np.array(state[f"{name}.{key}"]))
                                for key in self._keys(parameter) if saved}


def _by_name(lr_scales, parameters):
    """[(part, factor), ...] as {name of a parameter: factor}."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    scales = {}
    for part, factor in lr_scales:
        factor = not_negative("a factor of lr_scales", factor)
        for parameter in named_parameters(part).values():
            if id(parameter) not in names:
                raise ValueError(f"lr_scales names a {parameter} that is not among the optimiser's parameters")
            name = names[id(parameter)]
            if scales.setdefault(name, factor) != factor:
                raise ValueError(f"lr_scales gives {name} both {scales[name]} and {factor}")
    return scales


def _beside(data, array):
    """array on the device of data, and as wide."""
    if on_host(array) != on_host(data):
        array = like(to_host(array), data)
    return array.astype(wide(data.dtype), copy=False)
