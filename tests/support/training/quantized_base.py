"""A tiny model with adapters on a base of 4 bits."""

from pathlib import Path

from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from tests.support.data.chat_samples import CHATML, chats
from tests.support.data.samples import json_lines
from tests.support.training.model_families import QWEN3
from tests.support.training.runs import Prepared, prepared

LORA = Lora(r=4, alpha=8, dropout=0.1, targets=("q_proj", "v_proj"))


def chats_ready(folder: Path, **changes: object) -> Prepared:
    """Prepare a tiny Qwen3 with adapters on a base of 4 bits, and chats."""
    folder.mkdir(exist_ok=True)
    (folder / "chat.jinja").write_text(CHATML)
    source = json_lines(folder / "chats.jsonl", chats(300))
    data = DataRequest(source=str(source), max_length=128, chat_template=str(folder / "chat.jinja"))
    model = ModelRequest(task="causal-lm", config=QWEN3, lora=LORA, quantization="nf4", **changes)  # type: ignore[arg-type]
    return prepared(model, data, folder)
