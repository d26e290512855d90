"""``perfkit traffic``: what a model's state costs per step, before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli.common import JsonOption, ModelOption

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from perfkit.method import Case, Method

MIN_CANDIDATES = 64  # windows up to here are always tried
MAX_WINDOW = 2048  # every window up to the one asked for is tried, each with a chain of its length
MAX_BATCH = 2**31 - 1  # its bytes still fit into 64 bits


def traffic(
    model: ModelOption = None,
    window: Annotated[int, typer.Option("--window", metavar="L", help="Replay window in committed tokens.")] = 16,
    draft: Annotated[
        int | None, typer.Option("--draft", metavar="T", help="Positions per step; 1, the default, is decode.")
    ] = None,
    accepted: Annotated[
        str | None,
        typer.Option("--accepted", metavar="A", help="n, T, T-1, mean:X, a decimal, or p:.88,.62,.40. Default: all T."),
    ] = None,
    tree: Annotated[
        str | None, typer.Option("--tree", metavar="PARENTS", help="Draft tree, the parent of each draft: 0,0,1,1.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="B", help="Requests in a step.")] = 1,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", metavar="DTYPE", help="Keys and values.")] = "fp8",
    state_dtype: Annotated[
        str | None, typer.Option("--state-dtype", metavar="DTYPE", help="State; default: the model's.")
    ] = None,
    input_dtype: Annotated[str, typer.Option("--input-dtype", metavar="DTYPE", help="Inputs and records.")] = "bf16",
    json: JsonOption = False,
) -> None:
    """Show bytes, FLOPs, intensity and the best window.

    With --draft above 1 or --tree, every way to verify drafts: the table of the paper's App. A.1 has launches, reads R
    and writes W of the state, bytes as the paper counts them and exact, serial steps, and the times that ship with
    perfkit at this T and acceptance.

    Examples:
        perfkit traffic --model nemotron-super --window 16
        perfkit traffic --model nemotron-super --draft 4 --accepted T-1 --batch 256
        perfkit traffic --model nemotron-super --tree 0,0,1,1,2,2,3 --accepted mean:2.5 --json
    """
    from perfkit.cli.common import print_json

    data = collect(
        model,
        window=window,
        draft_len=draft,
        accepted=accepted,
        tree=tree,
        batch=batch,
        kv_dtype=kv_dtype,
        state_dtype=state_dtype,
        input_dtype=input_dtype,
    )
    if json:
        print_json(data)
    else:
        _print(data)


def collect(
    model_key: str | None,
    *,
    window: int = 16,
    draft_len: int | None = None,
    accepted: str | None = None,
    tree: str | None = None,
    batch: int = 1,
    kv_dtype: str = "fp8",
    state_dtype: str | None = None,
    input_dtype: str = "bf16",
) -> dict[str, Any]:
    """Return everything that the command shows, as plain data; the keys are what ``--json`` prints.

    Bytes and FLOPs named ``_per_head`` are the paper's counts of one head; those under ``methods`` are of one step of
    the whole batch in one layer, averaged over the cursor's real cycle. Of verify steps ``state_reads`` and
    ``state_writes`` are R and W, ``registered`` is false for a method of App. A.1 that has no kernels here, and
    ``times`` are the shipped times at this T and acceptance, one for each GPU.

    ``window_star`` and its cost are None where Eq. 16 has no optimum (T > M_S/r).

    Raises:
        InputError: unknown model or dtype, a window below 1 or below T, a batch below 1, an impossible acceptance.
    """
    import numpy as np

    from perfkit import roofline
    from perfkit.cli.traffic_methods import method_rows, recorded_times
    from perfkit.errors import InputError
    from perfkit.method import Case
    from perfkit.profiles import load_model
    from perfkit.roofline import crossover
    from perfkit.roofline import window as windows_
    from perfkit.roofline.flops import FLOPS
    from perfkit.shape import DTYPE_BYTES, dtype_name
    from perfkit.tree import Tree

    if model_key is None:
        raise InputError("needs a model", field="--model", allowed="a key of `perfkit list models`, or a config.json")
    nodes = Tree.parse(tree) if tree is not None else None
    if nodes is not None and draft_len not in (None, len(nodes)):
        raise InputError("a tree has as many positions as nodes, the root included; leave this out beside --tree",
                         field="--draft", value=draft_len, allowed=str(len(nodes)))  # fmt: skip
    draft_len = len(nodes) if nodes is not None else draft_len if draft_len is not None else 1
    depth = nodes.depth if nodes is not None else draft_len
    for field, value in (("--window", window), ("--draft", draft_len), ("--batch", batch)):
        if value < 1:
            raise InputError("must be at least 1", field=field, value=value)
    for field, value, most in (("--window", window, MAX_WINDOW), ("--batch", batch, MAX_BATCH)):
        if value > most:
            raise InputError(f"must be at most {most}", field=field, value=value)
    if depth > window:
        what = "draft length" if nodes is None else "longest path"
        raise InputError(f"the {what} does not fit into the window, L = {window}",
                         field="--draft" if nodes is None else "--tree", value=depth,
                         allowed=f"1..{window}")  # fmt: skip
    model = load_model(model_key)
    shape = model.shape
    state = dtype_name(state_dtype or model.state_dtype, field="--state-dtype", allowed=STATE_DTYPES)
    inputs = dtype_name(input_dtype, field="--input-dtype", allowed=INPUT_DTYPES)
    cache = dtype_name(kv_dtype, field="--kv-dtype", allowed=crossover.KV_DTYPES)
    acceptance = roofline.resolve_acceptance(accepted or ("T" if draft_len > 1 else "1"), depth)
    pmf = roofline.acceptance_pmf(acceptance, depth)
    mean = roofline.pmf_mean(pmf)

    element = DTYPE_BYTES[state]
    record = roofline.record_bytes(shape, DTYPE_BYTES[inputs])
    head_state = element * shape.d_v * shape.d_k
    per_token = float(roofline.traffic_per_token(shape, window, draft_len, mean, element, record))
    star = float(roofline.l_star(shape, draft_len, mean, record, element))
    chain = roofline.phase_chain(window, depth, pmf)
    mean_h = float(chain.mean(chain.h)[0])
    flops = FLOPS[shape.family]
    conventional = flops.conventional(shape.d_v, shape.d_k)
    if draft_len == 1:
        materialized = flops.materialized_decode(shape.d_v, shape.d_k, mean_h)
        output_only = flops.output_only_decode(shape.d_v, shape.d_k, mean_h)
    else:
        materialized = flops.materialized_verify(shape.d_v, shape.d_k, mean_h, draft_len)
        output_only = flops.output_only_verify(shape.d_v, shape.d_k, mean_h, draft_len)

    tree = str(nodes) if nodes is not None else None
    template = Case(shape, "replay", batch, window, draft_len, acceptance, tree=tree, input_dtype=inputs,
                    state_dtype=state)  # fmt: skip
    methods = _methods(shape.family, template.phase)
    times = recorded_times(model.key, template)
    rows = [row | {"times": times.get(row["method"], [])} for row in method_rows(methods, template)]
    candidates = np.arange(depth, max(MIN_CANDIDATES, window, 4 * int(np.ceil(star))) + 1)
    cost, basis = _best_window_cost(methods, template, pmf, element, record)
    paper = windows_.paper_cost(shape, draft_len, mean, element_bytes=element, record=record)
    rounded_star = max(depth, round(star), 1)
    tokens = roofline.crossover_tokens(model, cache, state)
    return {
        "schema_version": 1,
        "model": model.key,
        "family": shape.family,
        "shape": shape,
        "phase": template.phase,
        "batch": batch,
        "window": window,
        "draft_len": draft_len,
        "accepted": mean,
        "acceptance": acceptance,
        "tree": template.tree,
        "depth": depth,
        "state_dtype": state,
        "input_dtype": inputs,
        "kv_dtype": cache,
        "n_ssm_layers": model.n_ssm_layers,
        "n_attn_layers": model.n_attn_layers,
        "ratio_paper": round(per_token / (2 * head_state), 4),
        "ratio_exact": _ratio_exact(rows, template, mean),
        "intensity": round(conventional / (2 * head_state), 4),
        "state_bytes_per_head": head_state,
        "record_bytes_per_head": record,
        "traffic_per_token_per_head": per_token,
        "flops_conventional_per_head": conventional * draft_len,
        "flops_materialized_per_head": materialized,
        "flops_output_only_per_head": output_only,
        "flush_rate": float(chain.flush_rate[0]),
        "steps_per_flush": float(chain.steps_per_cycle[0]),
        "tokens_per_flush": float(chain.tokens_per_cycle[0]),
        "mean_records": mean_h,
        "window_star": round(star, 2) if star > 0 else None,
        "window_best_paper": roofline.best_window(paper, candidates),
        "window_best": roofline.best_window(cost, candidates),
        "window_best_basis": basis,
        "window_cost": roofline.off_cost(cost, window, candidates),
        "window_star_cost": roofline.off_cost(cost, rounded_star, candidates) if star > 0 else None,
        "crossover_tokens": None if tokens is None else round(tokens),
        "state_bytes_per_layer": int(shape.state_elements * element),
        "state_bytes_per_sequence": roofline.state_bytes_per_sequence(model, state),
        "kv_bytes_per_token": roofline.kv_bytes_per_token(model, cache),
        "methods": rows,
        "uncertain": list(getattr(model, "uncertain", ())),
    }


STATE_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1")
INPUT_DTYPES = ("float32", "float16", "bfloat16")


def _methods(family: str, phase: str) -> list[Method]:
    """Return the registered methods; a family without kernels has none, and its analytic numbers still stand."""
    from perfkit.registry import methods

    return [method for method in methods(family) if method.phase == phase]


def _ratio_exact(rows: list[dict[str, Any]], template: Case, accepted: float) -> float | None:
    """Return replay's exact bytes per committed token over those of conventional decode; None without kernels."""
    from dataclasses import replace

    from perfkit.cli.traffic_methods import method_steps

    replay = next((row for row in rows if row["method"] == "replay" and row.get("bytes_read") is not None), None)
    control = next(
        (method for method in _methods(template.shape.family, "decode") if method.key == "conventional"), None
    )
    if replay is None or control is None:
        return None
    decode = replace(template, method=control.key, draft_len=1, acceptance="1", window=None, tree=None)
    if control.supports(decode):
        return None
    exact, _ = method_steps(control, decode)
    moved = (replay["bytes_read"] + replay["bytes_write"]) / accepted
    return round(float(moved) / (float(exact.bytes_read) + float(exact.bytes_write)), 4)


def _best_window_cost(
    methods: list[Method], template: Case, pmf: NDArray[np.float64], element: float, record: float
) -> tuple[Any, str]:
    """Return bytes per committed token as a function of windows, and what it counts."""
    from dataclasses import replace

    from perfkit.derive import case_chain
    from perfkit.method import Point
    from perfkit.roofline import expected
    from perfkit.roofline import window as windows_

    method = next((m for m in methods if m.key == "replay" and m.windowed and m.supports(template) is None), None)
    if method is None:
        cost = windows_.chain_cost(template.shape, template.draft_len, pmf, element_bytes=element, record=record)
        return cost, "the paper's bytes over the cursor's real cycle"
    replay = method

    def exact(windows: NDArray[np.int64]) -> NDArray[np.float64]:
        chain = case_chain(template, replay, windows)
        point = replace(Point.of(template), window=chain.window)
        step = expected(lambda h, flush: replay.step(template.shape, point, h, flush), chain)
        total: NDArray[np.float64] = (step.bytes_read + step.bytes_write) / chain.accepted
        return total

    return exact, "replay's exact bytes over the cursor's real cycle"


def _star_cells(data: dict[str, Any]) -> list[Any]:
    """Return the table's row about Eq. 16, which has no optimum where T positions outweigh the state."""
    if data["window_star"] is None:
        return ["L*", "none (T > M_S/r)", "Eq. 16"]
    return ["L*", data["window_star"], f"Eq. 16; rounded, it would cost {data['window_star_cost']:.1%}"]


def _print(data: dict[str, Any]) -> None:
    """Print the tables that a person reads."""
    from perfkit.cli.common import err_console, out_console, print_table
    from perfkit.cli.traffic_methods import print_verify

    shape = data["shape"]
    percent = "{:.1%}".format
    delta = "" if shape.family == "mamba2" else "Eq. 3, counted as in "
    tree = f" (tree {data['tree']}, depth {data['depth']})" if data["tree"] else ""
    out_console().print(
        f"[bold]{data['model']}[/bold]  {shape.family}, {data['n_ssm_layers']} layers of {shape.n_v_heads} heads "
        f"{shape.d_v} x {shape.d_k}, {shape.n_k_heads} key heads; {data['phase']}, B = {data['batch']}, "
        f"L = {data['window']}, T = {data['draft_len']}{tree}, a = {data['accepted']:.4g}; "
        f"state {data['state_dtype']}, inputs {data['input_dtype']}"
    )
    print_table(
        ["quantity", "value", "source"],
        [
            ["state per layer and sequence, bytes", f"{data['state_bytes_per_layer']:,}", "App. C.2"],
            ["state per sequence, bytes", f"{data['state_bytes_per_sequence']:,}", "App. C.2"],
            ["SSM/attention crossover, tokens", data["crossover_tokens"], f"App. C.2, {data['kv_dtype']} cache"],
            ["record per head, bytes", data["record_bytes_per_head"], "App. C.3"],
            ["intensity of a conventional step, FLOP/byte", data["intensity"], f"{delta}Eq. 12"],
            ["replay / conventional decode, bytes per token, paper", data["ratio_paper"], "Eq. 13, 15"],
            ["replay / conventional decode, bytes per token, exact", data["ratio_exact"], "kernels' declared bytes"],
            ["FLOPs per head and step, output only", data["flops_output_only_per_head"], f"{delta}App. C.4"],
            ["FLOPs per head and step, materialized", data["flops_materialized_per_head"], f"{delta}App. C.4"],
            ["steps between flushes", data["steps_per_flush"], "cursor's Markov chain"],
            ["records in the buffer, mean", data["mean_records"], "cursor's Markov chain"],
            _star_cells(data),
            ["best L, paper", data["window_best_paper"], "Eq. 15"],
            ["best L over whole cycles", data["window_best"], data["window_best_basis"]],
            ["cost of this L over the best", percent(data["window_cost"]), data["window_best_basis"]],
        ],
    )
    out_console().print()
    rows = [row for row in data["methods"] if row["reason"] is None]
    if data["phase"] == "verify" and rows:
        print_verify(rows, data["window"])
    elif rows:
        columns = (
            "bytes_read",
            "bytes_write",
            "bytes_read_paper",
            "bytes_write_paper",
            "flops",
            "intensity",
            "launches",
        )
        print_table(
            ["method", "read, bytes", "write, bytes", "read, paper", "write, paper", "FLOPs", "FLOP/byte", "launches"],
            [[row["method"], *(row[column] for column in columns)] for row in rows],
            title="One step of the batch in one layer, averaged over the cursor's cycle",
        )
    if not any(row["registered"] for row in rows):
        what = f"{data['family']} {data['phase']}"
        if data["state_dtype"] not in INPUT_DTYPES:  # bytes can be counted in any dtype, kernels take these
            what = f"this dtype (state {data['state_dtype']})"
        elif any(row["registered"] for row in data["methods"]):
            what = "this case"
        err_console().print(f"no kernels for {what}: analytic numbers only")
    for row in data["methods"]:
        if row["reason"] is not None:
            err_console().print(f"{row['method']}: {row['reason']}")
    if data["uncertain"]:
        err_console().print(f"{data['model']}: not confirmed: {', '.join(data['uncertain'])}")
