import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyenc.data import IGNORE
from tinyenc.metrics import accuracy, confusion, f1_macro, f1_micro

LABELS = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 2, 1])


def test_accuracy_is_the_share_of_right_predictions():
    assert accuracy(PREDICTED, LABELS) == 0.5
    assert accuracy([1, 2], [1, 2]) == 1.0


def test_confusion_has_a_row_for_each_label_and_a_column_for_each_prediction():
    assert confusion(PREDICTED, LABELS).tolist() == [[2, 1, 0], [0, 1, 1], [0, 1, 0]]
    assert confusion([0, 1], [0, 0], n_classes=3).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_macro_f1_is_the_mean_over_classes():
    # class 0: 2·2/(2·2+0+1) = 4/5; class 1: 2·1/(2·1+2+1) = 2/5; class 2: 0/(0+1+1) = 0
    assert f1_macro(PREDICTED, LABELS) == pytest.approx((0.8 + 0.4 + 0) / 3, abs=1e-15)


def test_macro_f1_counts_the_classes_that_occur_and_no_others():
    assert f1_macro([0, 5], [0, 5]) == 1.0
    assert f1_macro([0, 5], [0, 0]) == pytest.approx((2 / 3 + 0) / 2, abs=1e-15)


def test_micro_f1_over_chosen_classes_leaves_the_others_out():
    # classes 1 and 2: tp 1, fp 2 + 1, fn 1 + 1
    assert f1_micro(PREDICTED, LABELS, classes=[1, 2]) == pytest.approx(2 / 7, abs=1e-15)
    assert f1_micro(PREDICTED, LABELS, classes=[]) == 0.0
    assert f1_micro(PREDICTED, LABELS, classes=[9]) == 0.0


def test_f1_takes_no_table_of_all_pairs_nor_of_all_classes():
    predicted, labels = [0, 9, 10**12], [0, 10**12, 10**12]
    assert f1_macro(predicted, labels) == pytest.approx((1 + 0 + 2 / 3) / 3, abs=1e-15)
    assert f1_micro(predicted, labels) == pytest.approx(2 / 3, abs=1e-15)


def test_ignored_positions_do_not_count_in_any_shape():
    labels = np.array([[0, 1, IGNORE], [2, IGNORE, IGNORE]])
    predicted = np.array([[0, 2, 1], [2, 0, 2]])
    assert accuracy(predicted, labels) == pytest.approx(2 / 3, abs=1e-15)
    assert confusion(predicted, labels).sum() == 3


def test_results_are_python_floats():
    for metric in (accuracy, f1_macro, f1_micro):
        assert type(metric(PREDICTED.astype(np.int32), LABELS)) is float


class OnAnotherDevice:
    """An array as CuPy's: its values come to the host by `get`, and by nothing else."""

    def __init__(self, values):
        self.values, self.dtype = np.asarray(values), np.asarray(values).dtype

    def get(self):
        return self.values

    def __array__(self, *arguments, **options):
        raise TypeError("implicit conversion to a NumPy array is not allowed")


def test_arrays_on_another_device_are_moved_to_the_host():
    assert accuracy(OnAnotherDevice(PREDICTED), OnAnotherDevice(LABELS)) == 0.5


pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@given(pairs)
def test_metrics_agree_with_counting_one_by_one(pairs):
    predicted, labels = map(list, zip(*pairs))
    table = confusion(predicted, labels, n_classes=5)
    f1 = []
    for c in set(predicted + labels):
        tp = sum(p == c and y == c for p, y in pairs)
        fp = sum(p == c and y != c for p, y in pairs)
        fn = sum(p != c and y == c for p, y in pairs)
        f1.append(2 * tp / (2 * tp + fp + fn))
    assert all(table[y, p] == pairs.count((p, y)) for p in range(5) for y in range(5))
    assert f1_macro(predicted, labels) == pytest.approx(sum(f1) / len(f1), abs=1e-12)
    assert f1_micro(predicted, labels) == pytest.approx(accuracy(predicted, labels), abs=1e-12)


@pytest.mark.parametrize("metric", [accuracy, f1_macro, f1_micro, confusion])
def test_what_cannot_be_scored_is_named(metric):
    with pytest.raises(ValueError, match=r"predicted has shape \(2,\), labels have \(3,\)"):
        metric([0, 1], [0, 1, 2])
    with pytest.raises(ValueError, match="nothing to score"):
        metric([], [])
    with pytest.raises(ValueError, match="nothing to score"):
        metric([1, 2], [IGNORE, IGNORE])
    with pytest.raises(ValueError, match="predicted must be class ids, not float64"):
        metric([0.5, 1.0], [0, 1])
    with pytest.raises(ValueError, match="labels must be class ids, not float64"):
        metric([0, 1], [0.5, 1.0])


def test_class_out_of_range_is_named():
    with pytest.raises(IndexError, match=r"class 3 is not in 0 \.\. 2"):
        confusion([3, 0], [0, 0], n_classes=3)
    with pytest.raises(IndexError, match=r"class -1 is not in"):
        confusion([-1, 0], [0, 0])
    with pytest.raises(IndexError, match=r"class 20 is not in 0 \.\. 19"):
        confusion([20], [0], n_classes=np.uint8(20))
    assert confusion([19], [0], n_classes=np.uint8(20)).shape == (20, 20)
    for f1 in f1_macro, f1_micro:
        with pytest.raises(IndexError, match=r"class -1 is below 0"):
            f1([-1, 0], [0, 0])


def test_classes_of_f1_are_class_ids():
    with pytest.raises(ValueError, match="^classes must be class ids, not bool$"):
        f1_micro(PREDICTED, LABELS, classes=[False, True, True])
