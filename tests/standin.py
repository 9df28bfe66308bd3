"""A stand-in for CuPy that needs no GPU: this module takes CuPy's place after `install`.

Its arrays hold NumPy arrays, have what CuPy's have, and refuse what CuPy's refuse: to become NumPy arrays by
themselves, to mix with NumPy arrays, and arguments of NumPy's that CuPy does not know. They count each time that
the host must wait for the device. Kernels run on the emulated device. Names and arguments are those of CuPy 14.
"""

import sys
import traceback
from types import SimpleNamespace

import cuda_emulator
import numpy as np

from tinyenc.kernels import fuse as fuse_module

syncs = []  # where the host waited for the device: a line of code for each time

# What NumPy has and CuPy has not.
MISSING = set("""
    False_ ScalarType True_ asmatrix block bmat busday_count busday_offset busdaycalendar bytes_ char character
    clongdouble complex256 core ctypeslib datetime64 datetime_as_string datetime_data dtypes einsum_path emath errstate
    f2py flexible float128 frompyfunc fromregex geomspace get_include getbufsize geterr geterrcall histogram_bin_edges
    info insert is_busday isnat little_endian longdouble ma matrix matvec memmap nanpercentile nanquantile ndenumerate
    nditer nested_iters object_ polyder polydiv polyint rec recarray record sctypeDict setbufsize seterr seterrcall
    show_runtime spacing str_ strings test timedelta64 typecodes unstack vecdot vecmat void
""".split())
REFUSED = {
    "all": "where", "amax": "initial where", "amin": "initial where", "any": "where", "argpartition": "kind order",
    "argsort": "order stable", "broadcast_to": "subok", "clip": "min max", "count_nonzero": "keepdims",
    "isin": "kind", "lexsort": "axis", "max": "initial where", "mean": "where", "min": "initial where",
    "nanmax": "initial where", "nanmean": "where", "nanmin": "initial where", "nansum": "initial where",
    "percentile": "weights", "prod": "initial where", "quantile": "weights", "sort": "order stable",
    "std": "where mean correction", "sum": "initial where", "take": "mode", "unique": "sorted",
    "var": "where mean correction",
}
WAITS = {"nonzero", "flatnonzero", "argwhere", "unique", "bincount", "extract", "compress", "histogram"}


def install(monkeypatch, fuse=False):
    """Make `import cupy` find this module, for one test. Formulas run operator by operator, unless fuse says so."""
    monkeypatch.setitem(sys.modules, "cupy", sys.modules[__name__])
    if not fuse:
        monkeypatch.setattr(fuse_module, "fused", lambda formula, args, kwargs=None: formula(*args, **kwargs or {}))
    syncs.clear()


def _wait():
    frames = [f for f in traceback.extract_stack() if f.filename != __file__]
    syncs.append(f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}")


def _host(x):
    """The NumPy array in place of each stand-in's, in any nest of lists and tuples."""
    if isinstance(x, ndarray):
        return x._host
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(x, (list, tuple)):
        return type(x)(_host(item) for item in x)
    return x


def _device(x):
    """A stand-in's array in place of each NumPy array or scalar."""
    if isinstance(x, (np.ndarray, np.generic)):
        return ndarray(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_device(item) for item in x)
    return x


def _call(name, function, args, kwargs):
    refused = [key for key in kwargs if key in REFUSED.get(name, "").split() or key in ("like", "device", "subok")]
    if refused:
        raise TypeError(f"cupy.{name}() got an unexpected keyword argument {refused[0]!r}")
    if name in WAITS or name == "where" and len(args) == 1:
        _wait()
    out = kwargs.get("out")
    result = function(*_host(args), **{key: _host(value) for key, value in kwargs.items()})
    return _device(result) if out is None else out


class ufunc:
    """A function of NumPy's, element by element; with no `where`."""

    def __init__(self, of_numpy):
        self._numpy = of_numpy
        self.nin, self.nout, self.name = of_numpy.nin, of_numpy.nout, of_numpy.__name__

    def __call__(self, *args, **kwargs):
        if unknown := set(kwargs) - {"out", "dtype", "casting"}:
            raise TypeError(f"Wrong arguments {unknown}")
        return _call(self.name, self._numpy, args, kwargs)

    def at(self, x, index, values):
        self._numpy.at(_host(x), _index(index), _host(values))

    def __getattr__(self, method):
        if method not in ("accumulate", "outer", "reduce", "reduceat"):
            raise AttributeError(method)
        return lambda *args, **kwargs: _call(method, getattr(self._numpy, method), args, kwargs)


class ndarray:
    """An array on the device, as far as anyone can tell without looking at `_host`."""

    __module__ = "cupy"
    __array_priority__ = 100

    def __init__(self, host, base=None):
        self._host = np.asarray(host)
        self.base = base

    # Refused

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. "
                        "Please use `.get()` to construct a NumPy array explicitly.")

    def __array_ufunc__(self, of_numpy, method, *args, out=None, **kwargs):
        if method != "__call__":
            return NotImplemented
        if out is not None:
            (kwargs["out"],) = out
        return getattr(sys.modules[__name__], of_numpy.__name__)(*args, **kwargs)

    def __array_function__(self, function, types, args, kwargs):
        module = sys.modules[__name__]
        try:
            for part in function.__module__.split(".")[1:]:
                module = getattr(module, part)
            mine = getattr(module, function.__name__)
        except AttributeError:
            return NotImplemented
        return mine(*args, **kwargs)

    # The host waits

    def get(self):
        _wait()
        return self._host.copy()

    def item(self):
        _wait()
        return self._host.item()

    def tolist(self):
        _wait()
        return self._host.tolist()

    def __bool__(self):
        _wait()
        return bool(self._host)

    def __int__(self):
        _wait()
        return int(self._host)

    def __float__(self):
        _wait()
        return float(self._host)

    def __repr__(self):
        return f"array({self._host!r} on the stand-in device)"

    # Parts

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        if any(isinstance(i, (ndarray, np.ndarray)) and i.dtype == bool for i in _listed(index)):
            _wait()  # for the number of True
        return ndarray(self._host[_index(index)], base=self)

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self._host[_index(index)] = _host(value)

    # What describes it

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    device = property(lambda self: cuda.Device)
    data = property(lambda self: SimpleNamespace(ptr=self._host.ctypes.data))
    __cuda_array_interface__ = property(lambda self: self._host.__array_interface__)
    flags = property(lambda self: SimpleNamespace(
        c_contiguous=self._host.flags.c_contiguous, f_contiguous=self._host.flags.f_contiguous,
        owndata=self._host.flags.owndata))

    T = property(lambda self: ndarray(self._host.T, base=self))
    mT = property(lambda self: ndarray(self._host.mT, base=self))
    flat = property(lambda self: self.ravel())

    def fill(self, value):
        self._host.fill(_host(value))


def _listed(index):
    return index if isinstance(index, tuple) else (index,)


def _index(index):
    """An index of arrays of either kind: CuPy copies NumPy's to the device."""
    return tuple(i._host if isinstance(i, ndarray) else i for i in _listed(index))


def _method(name):
    def method(self, *args, **kwargs):
        if name == "astype" and kwargs.pop("copy", True) is False and self.dtype == (args or [kwargs["dtype"]])[0]:
            return self
        return _call(name, getattr(self._host, name), args, kwargs)
    return method


def _operator(name):
    def operator(self, *others):
        if any(isinstance(other, np.ndarray) for other in others):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        result = getattr(self._host, name)(*_host(others))
        return self if result is self._host else result if result is NotImplemented else ndarray(result)
    return operator


for _name in """all any argmax argmin argsort astype clip copy cumsum diagonal dot flatten max mean min nonzero prod
                ravel repeat reshape round searchsorted sort squeeze std sum swapaxes take trace transpose var
                view""".split():
    setattr(ndarray, _name, _method(_name))
for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
    for _kind in "", "r", "i":
        if _kind + _name != "imatmul":
            setattr(ndarray, f"__{_kind}{_name}__", _operator(f"__{_kind}{_name}__"))
for _name in "neg pos abs invert eq ne lt le gt ge".split():
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


# The module


def asarray(x, dtype=None):
    """Onto the device; NumPy arrays are copied there."""
    if isinstance(x, ndarray):
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)
    return ndarray(np.array(x, dtype))


array = asarray


def asnumpy(x):
    """Off the device."""
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


def ascontiguousarray(x):
    """x itself where its elements already lie in C order."""
    return x if x.flags.c_contiguous else ndarray(np.ascontiguousarray(_host(x)))


def empty_like(x, dtype=None):
    """Memory that nothing has written, here full of NaN."""
    made = ndarray(np.empty_like(_host(x), dtype))
    made._host.view(np.uint8 if made._host.flags.c_contiguous else made.dtype).fill(255)
    return made


def __getattr__(name):
    if name in MISSING or name.startswith("_"):
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    of_numpy = getattr(np, name)
    if isinstance(of_numpy, np.ufunc):
        return ufunc(of_numpy)
    if isinstance(of_numpy, type) or not callable(of_numpy):
        return of_numpy
    return lambda *args, **kwargs: _call(name, of_numpy, args, kwargs)


RawModule = cuda_emulator.RawModule


class lib:
    """CuPy's only part of numpy.lib."""

    class stride_tricks:
        @staticmethod
        def sliding_window_view(x, window_shape, axis=None):
            return ndarray(np.lib.stride_tricks.sliding_window_view(_host(x), window_shape, axis))


class cuda:
    """The devices: one."""

    class Device:
        id = -1  # unlike any GPU's, so that kernels for them are not mixed up

    class runtime:
        getDeviceCount = staticmethod(lambda: 1)

    class nvrtc:
        getVersion = staticmethod(lambda: (13, 0))
