"""Parameter and Layer: what every part of a model is made of."""

import numpy as np

from .backend import chosen, on_host, to_device, to_host, wide


class Parameter:
    """An array that is learnt, and its gradient.

    grad is made of zeros when it is first asked for, in float32 where data is half precision; every backward
    adds to it. decay says whether weight decay applies (not to biases, norms and embeddings). A frozen
    parameter gets its gradient like any other, and optimisers leave it alone.
    """

    def __init__(self, data, decay=True):
        if not hasattr(data, "dtype"):
            raise TypeError(f"a Parameter takes an array, got {data!r}")
        self.data = data
        self.decay = decay
        self.frozen = False
        self._grad = None

    @property
    def grad(self):
        """The gradient, of data's shape, float32 or wider."""
        if self._grad is None:
            dtype = wide(self.data.dtype)
            self._grad = (np.zeros(self.data.shape, dtype) if on_host(self.data)  # fresh pages: zero for free
                          else np.zeros_like(self.data, dtype=dtype))
        return self._grad

    @grad.setter
    def grad(self, value):
        self._grad = value

    @property
    def has_grad(self):
        """Whether a gradient was made since the parameter was: none is, in a model that only predicts."""
        return self._grad is not None

    @property
    def shape(self):
        return self.data.shape

    def __repr__(self):
        return f"Parameter{self.data.shape} {self.data.dtype}"


class Buffer:
    """An array that a layer keeps and nobody learns: running statistics. Saved, loaded and moved as parameters are."""

    def __init__(self, data):
        self.data = data

    @property
    def shape(self):
        return self.data.shape


class Layer:
    """A pair of methods, forward above backward, and the parameters found in its attributes.

    Nothing is registered: the names in a state dict are the attributes' own, `layers.0.attn.w_q.weight`. A
    Parameter that stands in two places is one parameter, under its first name.
    """

    def __call__(self, *args, **kwargs):
        """forward without a tape: inference."""
        return self.forward(*args, **kwargs)

    def named_parameters(self):
        """(dotted name, Parameter) for every parameter, a shared one under its first name only."""
        return _first_names(self, Parameter)

    def parameters(self):
        """Every Parameter, a shared one once."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_arrays(self):
        """(dotted name, Parameter or Buffer) for all that a state holds."""
        return _first_names(self, (Parameter, Buffer))

    def named_layers(self):
        """(dotted name, Layer) for every layer inside, outermost first; this one is named ""."""
        return _first_names(self, Layer)

    @property
    def n_parameters(self):
        """How many numbers are learnt."""
        return sum(p.data.size for p in self.parameters())

    def zero_grad(self):
        """Set every gradient to zero."""
        for parameter in self.parameters():
            if parameter.has_grad:
                parameter.grad.fill(0)

    def state_dict(self):
        """{dotted name: a copy of the parameter or buffer, as a NumPy array}."""
        return {name: np.array(to_host(p.data)) for name, p in self.named_arrays()}

    def load_state_dict(self, state):
        """Copy arrays into the parameters and buffers of these names, in the dtype of each.

        ValueError names every missing, unexpected and mis-shaped entry, or one out of range; then nothing was changed.
        """
        own = dict(self.named_arrays())
        wrong = [f"missing {name}" for name in own if name not in state]
        wrong += [f"unexpected {name}" for name in state if name not in own]
        wrong += [f"{name} has shape {tuple(state[name].shape)}, not {p.shape}"
                  for name, p in own.items() if name in state and tuple(state[name].shape) != p.shape]
        if wrong:
            raise ValueError(f"the state does not fit {type(self).__name__}: " + "; ".join(wrong))
        new = {name: _converted(name, np.asarray(state[name]), p.data.dtype) for name, p in own.items()}
        for name, p in own.items():
            p.data[...] = to_device(new[name], _device(p.data))

    def to(self, device):
        """Move parameters, gradients and buffers to "cpu" or "gpu", or "auto": a GPU if one is there; returns self."""
        device = chosen(device)
        for _, array in self.named_arrays():
            array.data = to_device(array.data, device)
        for parameter in self.parameters():
            if parameter.has_grad:
                parameter.grad = to_device(parameter.grad, device)
        return self

    def astype(self, dtype):
        """Convert every parameter to dtype, dropping gradients; returns self. Buffers of floats stay in float32 or
        wider, others as they are.

        ValueError where a number is beyond the range of dtype, or that is not one of floats; then nothing was changed.
        """
        if np.dtype(dtype).kind in "biucUSO":
            raise ValueError(f"a model computes with floats, not with {np.dtype(dtype)}")
        own = {name: p for name, p in self.named_arrays() if isinstance(p, Parameter) or p.data.dtype.kind == "f"}
        new = {name: _converted(name, p.data, dtype if isinstance(p, Parameter) else wide(dtype))
               for name, p in own.items()}
        for name, p in own.items():
            p.data = new[name]
            if isinstance(p, Parameter):
                p.grad = None
        return self

    def named_parts(self):
        """{name: what it stands for}, in which parameters and layers are looked for: the attributes."""
        return vars(self)


def promises(layer, what):
    """Whether layer's class says `what = True`. A subclass with a forward of its own must say it for that one."""
    kinds = type(layer).__mro__
    says, does = (next((i for i, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
                  for name in (what, "forward"))
    return says <= does and getattr(layer, what, False)


def _device(array):
    return "cpu" if on_host(array) else "gpu"


def _converted(name, array, dtype):
    """array in dtype; ValueError where a number in it becomes infinite."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype, copy=False)
    if converted.dtype.itemsize < array.dtype.itemsize and (np.isinf(converted) & ~np.isinf(array)).any():
        raise ValueError(f"{name} holds a number beyond the range of {converted.dtype}: its largest is "
                         f"{float(abs(array[np.isfinite(array)]).max()):g}")
    return converted


def _first_names(root, kind):
    """(dotted name, object) for every object of a kind reachable through attributes and lists, each once."""
    seen = set()
    for name, node in _walk(root, ""):
        if isinstance(node, kind) and id(node) not in seen:
            seen.add(id(node))
            yield name, node


def _walk(node, path):
    if isinstance(node, (Parameter, Buffer, Layer)):
        yield path, node
    if isinstance(node, Layer):
        children = node.named_parts().items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    else:
        return
    for name, child in children:
        yield from _walk(child, f"{path}.{name}" if path else str(name))
