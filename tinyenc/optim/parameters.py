"""What is trained: a Layer, or a list of Parameters and Layers."""

from ..layer import Layer, Parameter


def named_parameters(parts):
    """{name: Parameter}, a shared one once: a Layer's own dotted names, or "0", "1.weight", ... for a list."""
    if isinstance(parts, Layer):
        return dict(parts.named_parameters())
    if isinstance(parts, Parameter):
        parts = [parts]
    found = {}
    for i, part in enumerate(parts):
        if isinstance(part, Parameter):
            inside = {str(i): part}
        elif isinstance(part, Layer):
            inside = {f"{i}.{name}": parameter for name, parameter in part.named_parameters()}
        else:
            raise TypeError(f"only a Layer or Parameters can be trained, got {type(part).__name__}")
        known = {id(parameter) for parameter in found.values()}
        found.update((name, p) for name, p in inside.items() if id(p) not in known)
    return found
