"""ONNX: models in files, the Attention operator, and the contributed operators of onnxruntime, as functions of arrays.

Arrays are NumPy's, bfloat16 with the dtype of ml_dtypes, which onnx depends on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from .frameworks import Array
from .numpy_arrays import NumpyFramework, lay_out
from .signature import CannotAdapt

Run = Callable[[dict[str, Any]], list[Any]]

#: releases of the intermediate representation that came with opset 23 and later are read by all runtimes that have the operator
_IR_VERSION = 10


class OnnxFramework(NumpyFramework):
    """NumPy arrays, bfloat16 among them."""

    name = "onnx"
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    views: tuple[str, ...] = ("transposed", "columns", "sliced", "offset", "fused", "reversed")

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> NDArray[Any]:
        return lay_out(np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype), view)

    def to_numpy(self, value: Any) -> Array:
        return np.asarray(value).astype(np.float64)

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        super().poison(shape, "float32" if dtype == "bfloat16" else dtype)


# -- running -----------------------------------------------------------------------------------------------------


def _with_runtime(model: bytes | str) -> Run:
    """onnxruntime on the CPU, one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda given: list(session.run(None, given))


def _with_reference(model: bytes) -> Run:
    """The reference evaluator of onnx."""
    evaluator = ReferenceEvaluator(onnx.load_from_string(model))
    return lambda given: list(evaluator.run(None, given))


_ENGINES: dict[str, Callable[[bytes], Run]] = {"runtime": _with_runtime, "reference": _with_reference}


class Operator:
    """One operator as a model of one node, built anew for each set of input types, ranks and attributes."""

    def __init__(self, name: str, engine: str, opset: int = 23, domain: str = "", outputs: int = 1) -> None:
        self.name, self.opset, self.domain, self.outputs = name, opset, domain, outputs
        self.engine = _ENGINES[engine]
        self._models: dict[Any, Run] = {}

    def __call__(self, inputs: list[tuple[str, Any]], attributes: Mapping[str, Any]) -> Any:
        """The first output. `inputs` are (name, array) in the operator's order, None where an optional one is left out."""
        given = {name: np.ascontiguousarray(array) for name, array in inputs if array is not None}
        key = (tuple((n, str(a.dtype), a.ndim) for n, a in given.items()), tuple(attributes.items()))
        if key not in self._models:
            self._models[key] = self.engine(self._model(inputs, given, attributes))
        return self._models[key](given)[0]

    def _model(
        self, inputs: list[tuple[str, Any]], given: Mapping[str, NDArray[Any]], attributes: Mapping[str, Any]
    ) -> bytes:
        names = [name if array is not None else "" for name, array in inputs]
        while not names[-1]:
            names.pop()
        results = ["output", *(f"unused_{n}" for n in range(1, self.outputs))]
        node = helper.make_node(self.name, names, results, domain=self.domain, **attributes)
        element = helper.np_dtype_to_tensor_dtype
        values = [
            helper.make_tensor_value_info(name, element(a.dtype), [f"{name}_{n}" for n in range(a.ndim)])
            for name, a in given.items()
        ]
        first = given[inputs[0][0]]
        made = [helper.make_tensor_value_info(name, element(first.dtype), None) for name in results]
        graph = helper.make_graph([node], "attention", values, made)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION).SerializeToString())


# -- operators ---------------------------------------------------------------------------------------------------


def attention_operator(engine: str, opset: int) -> Callable[..., Any]:
    """The operator Attention of the standard, (B, H, L, D): onnx/onnx, docs/Operators.md."""
    operator = Operator("Attention", engine, opset)

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Any:
        attributes = {"is_causal": int(is_causal), **_set(scale=scale, softcap=softcap)}
        return operator([("Q", query), ("K", key), ("V", value), ("attn_mask", attn_mask)], attributes)

    return attention


def multi_head_operator() -> Callable[..., Any]:
    """com.microsoft.MultiHeadAttention of onnxruntime: heads merged in (B, L, H D), an attention bias, a causal flag."""
    operator = Operator("MultiHeadAttention", "runtime", domain="com.microsoft")

    def attention(
        query: Any, key: Any, value: Any, attn_bias: Any = None, causal: bool = False, scale: float | None = None
    ) -> Any:  # (B, L, H, D)
        inputs = [(n, _merged(x)) for n, x in (("query", query), ("key", key), ("value", value))]
        inputs += [("bias", None), ("key_padding_mask", None), ("attention_bias", attn_bias)]
        attributes = {"num_heads": query.shape[2], "unidirectional": int(causal), **_set(scale=scale)}
        return operator(inputs, attributes).reshape(*query.shape[:3], value.shape[3])

    return attention


def grouped_query_operator() -> Callable[..., Any]:
    """com.microsoft.GroupQueryAttention of onnxruntime; keys beyond the queries are given as its past."""
    operator = Operator("GroupQueryAttention", "runtime", domain="com.microsoft", outputs=3)

    def attention(
        query: Any, key: Any, value: Any, causal: bool = False, scale: float | None = None, softcap: float | None = None
    ) -> Any:  # (B, L, H, D)
        batch, queries, heads, _ = query.shape
        keys, kv_heads = key.shape[1:3]
        if queries > keys:
            raise ValueError("more queries than keys: the operator's past can't be negative")
        past = keys - queries
        before = [np.ascontiguousarray(x[:, :past].swapaxes(1, 2)) for x in (key, value)]
        inputs = [("query", _merged(query)), ("key", _merged(key[:, past:])), ("value", _merged(value[:, past:]))]
        inputs += list(zip(("past_key", "past_value"), before if past else (None, None), strict=True))
        inputs += [
            ("seqlens_k", np.full(batch, keys - 1, np.int32)),
            ("total_sequence_length", np.array(keys, np.int32)),
        ]
        sizes = {"num_heads": heads, "kv_num_heads": kv_heads, "causal": int(causal)}
        return operator(inputs, {**sizes, **_set(scale=scale, softcap=softcap)}).reshape(*query.shape[:3], -1)

    return attention


def _merged(array: Any) -> Any:
    """(B, L, H, D) as (B, L, H D)."""
    return array.reshape(*array.shape[:2], -1)


def _set(**attributes: float | None) -> dict[str, float]:
    """The attributes that are given."""
    return {name: float(value) for name, value in attributes.items() if value is not None}


# -- files -------------------------------------------------------------------------------------------------------


def model_function(path: Path) -> Callable[..., Any]:
    """The model in a file as a function of its inputs, by their names.

    Inputs with an initializer are optional. A mask that is not given hides nothing: true, or zeros, of the rank that the model asks for.
    Raises CannotAdapt for a model that can't be loaded, or whose lengths are fixed.
    """
    try:
        model = onnx.load(str(path))
        run = _with_runtime(str(path))
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise CannotAdapt(f"{path} can't be loaded: {type(error).__name__}: {text}") from error
    optional = {item.name for item in model.graph.initializer}
    inputs = {item.name: item.type.tensor_type for item in model.graph.input}
    needed = [name for name in inputs if name not in optional]
    _lengths_are_free(path, {name: inputs[name] for name in needed[:3]})

    def of_model(*positional: Any, **keywords: Any) -> Any:
        given = {**dict(zip(inputs, positional, strict=False)), **keywords}
        arrays = [given[name] for name in needed[:2]]
        for name in inputs:
            if given.get(name) is None and name in needed[3:]:
                given[name] = _hides_nothing(inputs[name], arrays[0], arrays[1])
        results = run({name: np.ascontiguousarray(x) for name, x in given.items() if x is not None})
        return results[0] if len(results) == 1 else tuple(results)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    order = sorted(inputs, key=lambda name: name not in needed[:3])  # what has a default comes last
    parameters = [
        inspect.Parameter(n, kind, default=inspect.Parameter.empty if n in needed[:3] else None) for n in order
    ]
    of_model.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return of_model


def _lengths_are_free(path: Path, inputs: Mapping[str, Any]) -> None:
    """Raise CannotAdapt where the batch, the heads or the lengths of query, key and value are numbers."""
    for name, tensor in inputs.items():
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        if any(size is not None for size in sizes[:-1]):
            shown = ", ".join("?" if size is None else str(size) for size in sizes)
            raise CannotAdapt(
                f"{path} fixes the sizes of {name} to ({shown}), so that few laws could be tried; export it with dynamic "
                "axes for batch, heads and lengths"
            )


def _hides_nothing(tensor: Any, query: NDArray[Any], key: NDArray[Any]) -> NDArray[Any]:
    """A mask of the model's type and rank that masks nothing, for (..., L, D) arrays."""
    rank = len(tensor.shape.dim)
    shape = (1,) * (rank - 2) + (query.shape[-2], key.shape[-2])
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.ones(shape, dtype) if dtype == np.dtype(bool) else np.zeros(shape, dtype)
