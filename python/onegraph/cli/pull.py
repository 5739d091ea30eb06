"""`onegraph pull`: fetch a model before it is needed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from onegraph import _native, hub, nvrtc
from onegraph.cli.options import refuse_given
from onegraph.cli.terminal import debug_option, progress, say
from onegraph.errors import FileError
from onegraph.progress import Told, shown


def _kernels(told: Told | None) -> Callable[[int, int], object] | None:
    if told is None:
        return None
    return lambda done, total: told(f"compile {done} of {total} kernels", 0, None)


def _kernel_cache() -> tuple[Path, int]:
    """The folder of the kernel cache, which can be written, and the time there, in nanoseconds."""
    named = json.loads(_native.cuda_devices(nvrtc.folders()))["kernel_cache"]
    if named is None:
        raise FileError("--compile: there is no kernel cache folder; set ONEGRAPH_CACHE_DIR")
    folder = Path(named)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            return folder, Path(probe.name).stat().st_mtime_ns
    except OSError as e:
        raise FileError(
            f"--compile: cannot write the kernel cache {folder}: {e.strerror}; make it "
            "writable, or set ONEGRAPH_CACHE_DIR to a folder that is"
        ) from e


def _check_kept(folder: Path, before: int, new: int, total: int, arch: str) -> None:
    """That each of the `new` kernels has an entry in the cache, written since `before`."""
    kept = sum(entry.stat().st_mtime_ns >= before for entry in folder.iterdir())
    if kept < new:
        free = shutil.disk_usage(folder).free / 1e6
        raise FileError(
            f"--compile: {new - kept} of {total} kernels for {arch} could not be written to "
            f"{folder}, where {free:.0f} MB are free; free some space, or set "
            "ONEGRAPH_CACHE_DIR to a folder on another disk, and run it again"
        )


def _model(name: str, meant: str) -> str:
    named = hub.names().get(name)
    if named is None or meant != named.reference:
        return ""
    return f": {named.model}, {named.memory} GiB with a conversation of 8,192 tokens"


@click.command()
@click.argument("name")
@click.option(
    "--compile",
    "arch",
    metavar="ARCH",
    help="Also compile its kernels for this GPU architecture, such as sm_90.",
)
@click.option("--n-ctx", type=int, help="With --compile, the context of later loads.")
@click.option("--max-batch", type=int, default=8, show_default=True, help="With --compile.")
@click.option(
    "--kv-type", default=_native.DEFAULT_KV_TYPE, show_default=True, help="With --compile."
)
@click.option("--verify", is_flag=True, help="Check the whole file, not just a sample.")
@click.option("--update", is_flag=True, help="Download the latest commit of an hf: reference.")
@debug_option
def command(
    name: str,
    arch: str | None,
    n_ctx: int | None,
    max_batch: int,
    kv_type: str,
    verify: bool,
    update: bool,
) -> None:
    """Download the model NAME, check it, and print the path of its file.

    NAME is smollm2, a name from `onegraph list --names` such as llama3.2 or qwen3.5:4b,
    hf:user/repo/file.gguf, hf:user/repo:Q4_K_M or hf:user/repo@REVISION:Q4_K_M. A download is
    checked against its hash. A file that exists already is checked by its size and a sample of 1
    MiB, or as a whole with --verify, and downloaded again if it is damaged.

    An hf: reference is pinned to the commit it first resolved to. If the file has changed upstream
    since, standard error says so; --update downloads the new one.

    With --compile, a machine without a GPU fills the kernel cache, the folder `kernels` in
    $ONEGRAPH_CACHE_DIR. On a machine with such a GPU, a copy of the folder makes the first load as
    fast as later ones, without a compiler.
    """
    if arch is None:
        refuse_given(["n_ctx", "max_batch", "kv_type"], "only applies with --compile")
    folder, before = (None, 0) if arch is None else _kernel_cache()
    meant = hub.meant(name)
    if meant != name:
        say(f"{name} is {meant}{_model(name, meant)}", err=True)
    with shown(progress()) as told:
        path = hub.resolve(meant, progress=told, mend=True, verify=verify, update=update)
        if arch is not None:
            total, new = _native.compile_kernels(
                path,
                arch,
                n_ctx=n_ctx,
                max_batch=max_batch,
                kv_type=kv_type,
                prefill_chunk=None,
                nvrtc_folders=nvrtc.folders(),
                progress=_kernels(told),
            )
    if arch is not None and folder is not None:
        _check_kept(folder, before, new, total, arch)
        say(f"{total} kernels for {arch}, {new} of them new", err=True)
    if meant.startswith("hf:") and not update and (changed := hub.upstream_change(meant)):
        say(changed, err=True)
    say(path)
