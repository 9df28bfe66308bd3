"""Says at the end of a run how far backward and differences were apart."""

from .cases import RESULTS


def pytest_terminal_summary(terminalreporter):
    if RESULTS:
        (layer, name), worst = max(RESULTS.items(), key=lambda item: item[1].error)
        terminalreporter.write_line(
            f"gradcheck: {sum(r.slopes for r in RESULTS.values())} derivatives of "
            f"{sum(r.arrays for r in RESULTS.values())} gradients in {len(RESULTS)} cases, largest relative error "
            f"{worst.error:.1e} ({layer} [{name}]), {sum(r.kinks for r in RESULTS.values())} on a kink")
