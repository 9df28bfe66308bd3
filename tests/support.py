"""What several tests share: a small model, a padded batch, and eyes on every array that passes by."""

import contextlib
import warnings

import numpy as np

from tinyenc import Classifier, CrossEntropy, Encoder, EncoderLayer, Tape


def random(*shape, seed=0, dtype=np.float64):
    """Gaussian numbers that depend on the shape and the seed alone."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def small_encoder(layer=EncoderLayer, dtype=np.float64, dropout=0.0, seed=0, **settings):
    """Two layers of width 16; every bias and norm weight away from its initial value, where mistakes can hide."""
    sizes = dict(vocab_size=40, d_model=16, n_heads=4, d_ff=24, n_layers=2, max_len=64) | settings
    encoder = Encoder(**sizes, dropout=dropout, layer=layer, rng=seed)
    return shaken(encoder, seed).astype(dtype)


def small_classifier(layer=EncoderLayer, dtype=np.float64, dropout=0.0, seed=0, pool=None, **settings):
    """A small_encoder with a head for three classes."""
    model = Classifier(small_encoder(layer, dtype, dropout, seed, **settings), 3, pool, dropout, rng=seed)
    shaken(model.out, seed)
    return model.astype(dtype)


def shaken(layer, seed=0):
    """layer, with noise added to its vectors: biases, which start as zeros, and norm weights, which start as ones."""
    rng = np.random.default_rng(seed)
    for parameter in layer.parameters():
        if parameter.data.ndim == 1:
            parameter.data = parameter.data + 0.3 * rng.standard_normal(parameter.shape).astype(parameter.data.dtype)
    return layer


def padded_batch(lengths, width=None, seed=0, vocab_size=40, pad=0):
    """ids (B, T), pad at padding, and the real tokens (B, T)."""
    tokens = np.arange(width or max(lengths)) < np.array(lengths)[:, None]
    ids = np.random.default_rng(seed).integers(1, vocab_size, tokens.shape)
    return np.where(tokens, ids, pad), tokens


def gradients(model, ids, mask, labels, seed=None, weight=1.0):
    """The loss, and {name: a copy of the gradient} after one forward and backward from zero gradients."""
    model.zero_grad()
    tape, loss_fn = Tape(seed), CrossEntropy()
    loss = loss_fn.forward(model.forward(ids, mask, tape), np.asarray(labels), tape)
    model.backward(loss_fn.backward(weight, tape), tape)
    assert len(tape) == 0, "the backward of some layer was not called"
    return float(loss), {name: p.grad.copy() for name, p in model.named_parameters()}


@contextlib.contextmanager
def no_float_trouble():
    """Any overflow, underflow, division by zero or invalid operation is an error, on worker threads too."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy's error state is each thread's own; the warning filters are everyone's
        yield


class SeenTape(Tape):
    """A tape that also lists every array pushed on it and on its forks."""

    def __init__(self, seed=None, seen=None):
        super().__init__(seed)
        self.seen = [] if seen is None else seen

    def push(self, layer, *saved):
        super().push(layer, *saved)
        self.seen += [(f"saved by {type(layer).__name__}", value) for value in arrays_in(saved)]

    def fork(self):
        return SeenTape(self.next_seed(), self.seen)


def arrays_in(value):
    """Every array (and NumPy scalar) inside nested tuples, lists and objects that say what they hold."""
    if isinstance(value, (np.ndarray, np.generic)):
        return [value]
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in arrays_in(item)]
    if hasattr(value, "saved_arrays"):
        return arrays_in(tuple(value.saved_arrays()))
    return []


def watch(model, seen):
    """From now on, add what forward and backward of every layer inside model return to seen, as (where, array)."""
    for name, layer in model.named_layers():
        for method in "forward", "backward":
            if hasattr(layer, method):
                where = f"{name or type(layer).__name__}.{method}"
                setattr(layer, method, _watched(getattr(layer, method), where, seen))


def _watched(method, where, seen):
    def run(*args, **kwargs):
        result = method(*args, **kwargs)
        seen.extend((where, array) for array in arrays_in(result))
        return result
    return run
