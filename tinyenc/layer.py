"""Parameter and Layer: what every part of a model is made of."""

import numpy as np

from .backend import on_host, to_device, to_host, wide


class Parameter:
    """An array that is learnt, and its gradient.

    grad is made of zeros when it is first asked for, in float32 where data is half precision; every backward
    adds to it. decay says whether weight decay applies (not to biases, norms and embeddings). A frozen
    parameter gets its gradient like any other, and optimisers leave it alone.
    """

    def __init__(self, data, decay=True):
        self.data = data
        self.decay = decay
        self.frozen = False
        self._grad = None

    @property
    def grad(self):
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
        """{dotted name: a copy of the parameter, as a NumPy array}."""
        return {name: np.array(to_host(p.data)) for name, p in self.named_parameters()}

    def load_state_dict(self, state):
        """Copy arrays into the parameters of these names, in each parameter's dtype.

        ValueError names every missing, unexpected and mis-shaped entry; then nothing was changed.
        """
        parameters = dict(self.named_parameters())
        wrong = [f"missing {name}" for name in parameters if name not in state]
        wrong += [f"unexpected {name}" for name in state if name not in parameters]
        wrong += [f"{name} has shape {tuple(state[name].shape)}, not {p.shape}"
                  for name, p in parameters.items() if name in state and tuple(state[name].shape) != p.shape]
        if wrong:
            raise ValueError(f"the state does not fit {type(self).__name__}: " + "; ".join(wrong))
        for name, parameter in parameters.items():
            parameter.data[...] = to_device(np.asarray(state[name], parameter.data.dtype), _device(parameter.data))

    def to(self, device):
        """Move parameters, gradients and tables to "cpu" or "gpu"; returns self."""
        for parameter in self.parameters():
            parameter.data = to_device(parameter.data, device)
            if parameter.has_grad:
                parameter.grad = to_device(parameter.grad, device)
        return self

    def astype(self, dtype):
        """Convert every parameter to dtype, dropping gradients; returns self."""
        for parameter in self.parameters():
            parameter.data = parameter.data.astype(dtype)
            parameter.grad = None
        return self

    def named_parts(self):
        """{name: what it stands for}, in which parameters and layers are looked for: the attributes."""
        return vars(self)


def _device(array):
    return "cpu" if on_host(array) else "gpu"


def _first_names(root, kind):
    """(dotted name, object) for every object of a kind reachable through attributes and lists, each once."""
    seen = set()
    for name, node in _walk(root, ""):
        if isinstance(node, kind) and id(node) not in seen:
            seen.add(id(node))
            yield name, node


def _walk(node, path):
    if isinstance(node, (Parameter, Layer)):
        yield path, node
    if isinstance(node, Layer):
        children = node.named_parts().items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    else:
        return
    for name, child in children:
        yield from _walk(child, f"{path}.{name}" if path else str(name))
