"""Memory for time: activations that are computed again instead of saved."""

from ..layer import Layer, promises
from ..tape import NO_TAPE, Tape


class Recompute(Layer):
    """layer(x), saving nothing but x: backward runs forward again (Chen et al. 2016, "sublinear memory cost").

    Wraps any layer whose backward returns what its forward takes, and gives the layer's own gradients to the bit: what
    dropout drops is drawn again from the same seeds. Wrapped one by one, the layers of an encoder need the memory of
    one of them, and the time of one more forward:

        encoder.layers = [Recompute(layer) for layer in encoder.layers]

    Parameters keep their names, so states fit the model with and without it.
    """

    def __init__(self, layer):
        self.layer = layer

    def forward(self, *inputs, tape=NO_TAPE, **named):
        """What the layer's forward takes, the tape last or by name."""
        if inputs and isinstance(inputs[-1], Tape):
            *inputs, tape = inputs
        replay = tape.replay()
        with tape.paused():
            y = self.layer.forward(*inputs, **named, tape=tape)
        tape.push(self, replay, inputs, named)
        return y

    def backward(self, dy, tape):
        replay, inputs, named = tape.pop(self)
        self.layer.forward(*inputs, **named, tape=replay)
        dx = self.layer.backward(dy, replay)
        replay.check_empty()
        return dx

    @property
    def takes_padding(self):
        return promises(self.layer, "takes_padding")

    @property
    def takes_bias(self):
        return promises(self.layer, "takes_bias")

    @property
    def compares_places(self):
        return getattr(self.layer, "compares_places", False)

    def named_parts(self):
        return self.layer.named_parts()
