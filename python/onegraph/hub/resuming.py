"""Downloads from Hugging Face that go on where they stopped.

huggingface_hub writes each download to a file of a name of its own, and begins anew after a kill or
Ctrl-C: of a model of 20 GB all is lost. So a file is put where its cache keeps it before it looks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from onegraph.hub.cache import one_process

__all__ = ["fetch"]

#: The hash of a content, by which the cache names it. Anything else could lead out of the cache.
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def fetch(repo: str, name: str, revision: str | None, bar: type[Any]) -> None:
    """Fetches a file's content into Hugging Face's cache where it is not there, and shows it by a
    `bar` of tqdm's. What it leaves to huggingface_hub: errors of a hub that gives no such file, as
    it has its own words for them, and files that come by no plain request.

    Raises what huggingface_hub and the system raise once the download has begun.
    """
    import huggingface_hub as hub
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    # What a commit names never changes, so nobody need be asked.
    is_commit = revision is not None and _HASH.fullmatch(revision)
    if is_commit and hub.try_to_load_from_cache(repo, name, revision=revision):
        return
    try:
        found = hub.get_hf_file_metadata(hub.hf_hub_url(repo, name, revision=revision))
    except Exception:  # its own classes, those of its HTTP client, the system's
        return
    size, etag = found.size, found.etag
    if not size or size > constants.MAX_HTTP_DOWNLOAD_SIZE or constants.HF_XET_HIGH_PERFORMANCE:
        return
    if etag is None or not _HASH.fullmatch(etag) or not found.commit_hash:
        return
    cache = Path(constants.HF_HUB_CACHE)
    folder = file_download.repo_folder_name(repo_id=repo, repo_type="model")
    blob = cache / folder / "blobs" / etag
    lock = cache / ".locks" / folder / f"{etag}.lock"
    if blob.exists():
        return
    for each in (blob, lock):
        each.parent.mkdir(parents=True, exist_ok=True)
    # A lock of the system's on the file that huggingface_hub locks, so that each heeds the other.
    with one_process(lock, lambda: None):
        if blob.exists():  # another process has fetched it while this one waited
            return
        unfinished = blob.with_name(f"{etag}.onegraph.incomplete")
        with unfinished.open("ab") as file:
            if file.tell() > size:
                file.truncate(0)
            # The client sends the token to the hub alone, not to where that leads.
            file_download.http_get(
                hub.hf_hub_url(repo, name, revision=found.commit_hash),
                file,
                resume_size=file.seek(0, os.SEEK_END),
                headers=build_hf_headers(),
                expected_size=size,
                tqdm_class=bar,
            )
        unfinished.replace(blob)
