"""Where the mistake is, from further runs: which layer inside, and in which use."""

import inspect

import numpy as np

from ..tape import Tape
from .compare import Check
from .evidence import evidence
from .probe import Probe
from .report import and_list, message
from .structure import GradientError, check_single_precision, check_structure


def diagnose(check):
    """The message for a check that failed: a table of every gradient, and under it what further runs show."""
    name = check.probe.name
    rows = check.rows()
    wrong = [row.name for row in rows if not row.right]
    modes = check.mode_errors()
    if wrong:
        title = f"{name}: {len(wrong)} of {len(rows)} gradients {'is' if len(wrong) == 1 else 'are'} wrong"
        findings = blame(check, wrong)
    elif modes:
        title = f"{name}: each gradient is right by itself, but not in every use"
        findings = [finding for mode, names in modes.items() for finding in blame_use(check, mode, names)]
    else:
        check = check.beside
        rows = check.rows()
        title = f"{name}: right only on the kink where it was given; wrong a little beside it"
        findings = blame(check, [row.name for row in rows if not row.right])
    return message(title, rows, findings)


def blame(check, wrong):
    """Findings about the innermost layer whose own derivative is wrong: one inside, or the layer itself."""
    inside = check_inside(check)
    innermost = innermost_wrong(inside)
    if not innermost:
        own = [f"each layer inside is right on the inputs it really got ({and_list(inside)}): the mistake is in "
               f"{check.probe.name}.backward itself, or in what it calls besides them"] if inside else []
        return own + evidence(check, wrong)
    name = innermost[0]
    layers = dict(check.probe.layer.named_layers())
    kind = type(layers.get(name) or layers[name.rpartition(".")[0]]).__name__
    findings = [f"{name} ({kind}) is the first layer in backward order that is wrong by itself, on the inputs it "
                "really got" + (f"; so are {and_list(innermost[1:])}" if innermost[1:] else "")]
    return findings + [f"{name}: {line}" for line in what_is_wrong(inside[name])]


def blame_use(check, mode, names):
    """Findings about a layer that is right once, on arrays that are contiguous, and not in another use."""
    inside = check_inside(check)
    innermost = innermost_wrong(inside)
    if innermost:
        return [f"{name}: {line}" for name in innermost for line in what_is_wrong(inside[name])]
    listed = and_list(names)
    if mode == "scattered":
        return [f"{listed}: wrong only for inputs, or a dy, that are not contiguous in memory. A reshape of such an "
                "array may be a copy, and what is written there is lost"]
    if overwrites(check.probe, names):
        return [f"{listed}: overwritten, not added to: the gradient is the same whatever .grad held before. += is "
                "needed: gradients accumulate, and a layer may be used twice"]
    return [f"{listed}: wrong only when the layer is used twice before its backward. Something is kept outside the "
            "tape, where the second forward overwrites it"]


def what_is_wrong(found):
    """Findings about a layer inside, from its Check, or the promise it breaks."""
    if isinstance(found, GradientError):
        return [str(found)]
    wrong = [row.name for row in found.rows() if not row.right]
    if wrong:
        return evidence(found, wrong)
    return [finding for mode, names in found.mode_errors().items() for finding in blame_use(found, mode, names)]


def blame_structure(check, error):
    """The message for a broken promise, with the innermost layer that breaks one by itself, where there is one."""
    try:
        inside = check_inside(check, check_promises)
    except Exception:  # forward itself fails: there is nothing more to learn
        return str(error)
    innermost = innermost_wrong(inside)
    return "\n".join([str(error)] + [f"  * {name}: {inside[name]}" for name in innermost])


def check_promises(probe):
    """GradientError where a layer breaks what must hold before its numbers are compared."""
    check_structure(probe)
    check_single_precision(probe)


def overwrites(probe, names):
    """Whether these gradients come out the same whatever was in .grad before."""
    if any(name in probe.inputs for name in names):
        return False
    alone = probe.analytic()
    probe.clear_gradients()
    tape = Tape(probe.seed)
    probe.forward(tape)
    for name in names:
        probe.parameters[name].grad = np.ones_like(alone[name])
    probe.backward(probe.dy.copy(), tape)
    return all(np.allclose(probe.parameters[name].grad, alone[name], 1e-12, 1e-12) for name in names)


def check_inside(check, examine=None):
    """{name: None where right, else its Check or GradientError} for each layer inside, in backward order.

    examine: what to do with the Probe of each, by default the whole check. A layer that cannot run alone is left out.
    """
    found = {}
    for name, layer, method, args, kwargs in reversed(record_calls(check.probe)):
        if found.get(name) is None:
            inner = Check(Probe(layer, args, kwargs, check.probe.seed, method=method), check.tol, small=0)
            try:
                right = examine(inner.probe) is None if examine else inner.holds()
                found[name] = None if right else inner
            except GradientError as error:
                found[name] = error
            except Exception:  # its inputs say too little: no evidence
                continue
    return found


def innermost_wrong(inside):
    """The names of the wrong layers that have no wrong layer inside."""
    wrong = [name for name, found in inside.items() if found is not None]
    return [name for name in wrong if not any(other.startswith(name + ".") for other in wrong)]


def record_calls(probe):
    """What every layer inside gets in the probe's forward, in the order in which the calls end.

    A list of (name, layer, method, args, kwargs), without the tape. Methods are forward and those that have a backward
    of their own, where they return an array.
    """
    calls = []
    wrapped = []

    def listen(name, layer, method):
        run = getattr(layer, method)

        def recorded(*args, **kwargs):
            y = run(*args, **kwargs)
            if isinstance(y, np.ndarray) and (y is not args[0] or method == "forward"):
                calls.append((name, layer, method, *without_tape(run, args, kwargs)))
            return y
        setattr(layer, method, recorded)
        wrapped.append((layer, method))

    for name, layer in list(probe.layer.named_layers())[1:]:
        listen(name, layer, "forward")
        for method in paired_methods(layer):
            listen(f"{name}.{method}", layer, method)
    try:
        probe.forward()
    finally:
        for layer, method in wrapped:
            delattr(layer, method)
    return calls


def paired_methods(layer):
    """The names of methods m beside which there is an m_backward."""
    return [name for name in dir(type(layer)) if hasattr(type(layer), f"{name}_backward")]


def without_tape(forward, args, kwargs):
    """The arguments but for the tape, with copies of the arrays; one that is there twice is copied once.

    What stands after the tape goes by name.
    """
    copies = {id(value): value.copy() for value in [*args, *kwargs.values()] if isinstance(value, np.ndarray)}
    args = [copies.get(id(value), value) for value in args]
    kwargs = {name: copies.get(id(value), value) for name, value in kwargs.items() if not isinstance(value, Tape)}
    at = next((i for i, value in enumerate(args) if isinstance(value, Tape)), len(args))
    names = list(inspect.signature(forward).parameters)
    return args[:at], {**dict(zip(names[at + 1:], args[at + 1:])), **kwargs}
