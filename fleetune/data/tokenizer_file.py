"""How a model's tokenizer.json splits texts, beside how transformers does by the same folder, as training goes."""

from collections.abc import Iterator
from itertools import islice, zip_longest

from fleetune.data.dialogues import Chat
from fleetune.data.examples import Example, examples
from fleetune.data.job import Job
from fleetune.data.tokenization import own_tokenizer
from fleetune.errors import first_line

TEXTS, LETTERS, SHOWN = 200, 2000, 8
"""Texts that are compared, characters of each, and tokens and characters of a difference that are told."""


def other_split(job: Job) -> Iterator[str]:
    """A sentence if the file splits one of the first texts otherwise. Of both, special tokens aside: transformers adds
    them by other files. Nothing of a stream, whose shuffle begins with thousands of rows each time it is read."""
    file = None if job.spec.tokenizer is None else job.spec.tokenizer / "tokenizer.json"
    if job.request.streaming or not job.spec.is_text or file is None or not file.is_file():
        return
    from tokenizers import Tokenizer

    try:
        own = Tokenizer.from_file(str(file))
    except Exception as error:  # its only type
        yield f"the model's tokenizer.json cannot be read as programs other than transformers do ({first_line(error)})"
        return
    own.no_truncation()
    own.no_padding()
    trained = own_tokenizer(job.spec)
    every = (one for table in job.source.tables for one in examples(table, job.source, job.spec))
    for example in islice(every, TEXTS):
        text = _text(example)[:LETTERS]
        ours = trained(text, add_special_tokens=False, verbose=False)["input_ids"]
        read = own.encode(text, add_special_tokens=False)
        if ours != read.ids:
            at = next(number for number, (a, b) in enumerate(zip_longest(ours, read.ids)) if a != b)
            part = text[next(iter(read.offsets[at:]), (0, 0))[0] :][:SHOWN]
            yield (
                "the model's tokenizer.json splits texts otherwise than transformers, by which training goes: "
                f"{part!r} is {read.tokens[at : at + SHOWN]} by the file, which other programs read, and "
                f"{trained.convert_ids_to_tokens(ours[at : at + SHOWN])} by {type(trained).__name__} of "
                "transformers. Save the tokenizer again with transformers for its split in both; or, if the model was "
                'trained by the file, set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json, by '
                "which transformers takes the file as it is for most types of models"
            )
            return


def _text(example: Example) -> str:
    content = example.content
    if isinstance(content, Chat):
        return "\n".join(str(message.get("content") or "") for message in content.messages)
    return content if isinstance(content, str) else str(getattr(content, "spelled", ""))
