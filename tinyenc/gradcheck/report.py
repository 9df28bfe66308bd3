"""What a failed check prints."""

import textwrap

LONG = 12  # a table of more gradients shows the wrong ones only


def message(title, rows, findings):
    """A title, the table of the gradients, and under it a bullet for each finding."""
    bullets = [textwrap.fill(finding, 110, initial_indent="  * ", subsequent_indent="    ") for finding in findings]
    return "\n".join([title, "", table(rows), "", *bullets])


def table(rows):
    """One line a gradient: its worst number by backward and by differences, the relative error, and where.

    Of more than LONG gradients those that are right are only counted.
    """
    head = ("gradient of", "shape", "by backward", "by differences", "error", "worst at", "")
    shown = rows if len(rows) <= LONG else [row for row in rows if not row.right]
    lines = [head]
    for row in shown:
        lines.append((row.name, str(row.shape), f"{row.analytic:.9g}", f"{row.numeric:.9g}", f"{row.error:.1e}", row.at,
                      "<- wrong" if not row.right else "no effect on this forward" if row.silent else ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    if len(shown) < len(rows):
        text.append(f"and {len(rows) - len(shown)} right ones")
    return textwrap.indent("\n".join(text), "  ")


def and_list(names, most=6):
    """a, b and c; cut short where there are many."""
    names = list(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
