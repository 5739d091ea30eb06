"""A store of models, laid out as ollama lays out its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

MODEL = "application/vnd.ollama.image.model"


def add_model(
    root: Path,
    name: str,
    content: bytes,
    *,
    size: int | None = None,
    media: str = MODEL,
    **layers_of: bytes,
) -> Path:
    """Writes a manifest at `name` (host/namespace/model/tag) and its blobs; returns the model's.
    `layers_of` are those of a Modelfile, such as `system` and `params`."""
    layers = []
    blobs = {}
    others = {"template": b"{{ .Prompt }}", "license": b"Apache-2.0", "params": b"{}"} | layers_of
    for kind, data in {"model": content, **others}.items():
        digest = hashlib.sha256(data).hexdigest()
        blobs[kind] = root / "blobs" / f"sha256-{digest}"
        blobs[kind].parent.mkdir(parents=True, exist_ok=True)
        blobs[kind].write_bytes(data)
        media_type = media if kind == "model" else f"application/vnd.ollama.image.{kind}"
        length = len(data) if size is None or kind != "model" else size
        layers.append({"mediaType": media_type, "digest": f"sha256:{digest}", "size": length})
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": 2},
        "layers": layers,
    }
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    return blobs["model"]
