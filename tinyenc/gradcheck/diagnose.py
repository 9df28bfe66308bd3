"""What is wrong, from evidence: further runs and comparisons, never a guess."""

import inspect
import math

import numpy as np

from ..tape import Tape
from .check import Check
from .probe import is_float
from .report import listed, table
from .structure import GradientError


def diagnose(check):
    """The message for a check that failed: a table of every gradient, and below it what further runs show."""
    rows = check.rows()
    wrong = [row.name for row in rows if not row.right]
    modes = check.mode_errors()
    title = (f"{check.probe.name}: {len(wrong)} of {len(rows)} gradients "
             f"{'is' if len(wrong) == 1 else 'are'} wrong")
    if not wrong:
        title = f"{check.probe.name}: every gradient is right on its own, but not in every use"
        if not modes:
            rows = check.beside.rows()
            title = f"{check.probe.name}: a gradient is wrong beside a kink"
    findings = [mode_finding(check, mode, names) for mode, names in modes.items() if not wrong]
    if wrong:
        findings += blame(check, wrong)
    return "\n".join([title, "", table(rows), "", *(f"  * {finding}" for finding in findings)])


def mode_finding(check, mode, names):
    """What it means that a layer is right once, on plain arrays, and not otherwise."""
    if mode == "scattered":
        return (f"wrong only for inputs (or a dy) that are not contiguous in memory: {listed(names)}. A reshape of such "
                "an array is a copy, and what is written to it is lost")
    only_parameters = all(name in check.probe.parameters for name in names)
    if only_parameters and overwritten(check.probe, names):
        return f"overwrites instead of adding: {listed(names)} lose what .grad held before; use +="
    return (f"wrong only when the layer is used twice before its backward: {listed(names)}. Something it needs is kept "
            "in an attribute, where the second forward overwrites it; push it to the tape")


def overwritten(probe, names):
    """Whether the gradients of these parameters come out the same whatever was in .grad before."""
    probe.clear_gradients()
    alone = probe.analytic()
    probe.clear_gradients()
    tape = Tape(probe.seed)
    probe.forward(tape)
    for name in names:
        probe.parameters[name].grad = np.ones_like(alone[name])
    probe.backward(probe.dy.copy(), tape)
    return all(np.array_equal(probe.parameters[name].grad, alone[name]) for name in names)


def blame(check, wrong):
    """Findings about the innermost layer that is wrong: the layer itself, or one inside it."""
    inner = check_inside(check)
    bad = {name: found for name, found in inner.items() if found is not None and not isinstance(found, bool)}
    innermost = [name for name in bad if not any(other.startswith(name + ".") for other in bad)]
    if not innermost:
        findings = ["every layer inside is right on the inputs it really got "
                    f"({listed(list(inner))}): the mistake is in {check.probe.name}.backward itself"] if inner else []
        return findings + evidence(check, wrong)
    findings = []
    for name in innermost[:2]:
        found = bad[name]
        kind = type(dict(check.probe.layer.named_layers())[name]).__name__
        first = " is the first in backward order whose own derivative is wrong" if name == innermost[0] else \
            " is wrong too"
        findings.append(f"{name} ({kind}){first}, checked alone on the inputs it really got")
        if isinstance(found, GradientError):
            findings.append(str(found))
            continue
        its_wrong = [row.name for row in found.rows() if not row.right]
        lines = evidence(found, its_wrong) if its_wrong else \
            [mode_finding(found, mode, names) for mode, names in found.mode_errors().items()]
        findings += [f"{name}: {line}" for line in lines]
    return findings


def check_inside(check):
    """{name: what is wrong} for the layers inside, in backward order; None for right, a Check or a GradientError.

    Each is checked alone on the arrays that it got in the forward of the whole.
    """
    calls = record_calls(check.probe)
    found = {}
    for name, layer, args, kwargs in reversed(calls):
        if name in found:
            continue
        from .probe import Probe
        try:
            inner = Check(Probe(layer, args, kwargs, check.probe.seed), check.tol, small=0)
            found[name] = None if inner.result() else inner
        except GradientError as error:
            found[name] = error
    return found
