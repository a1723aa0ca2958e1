"""A Hugging Face model, with or without PEFT adapters, as an ordered list of named units that run anywhere.

`source` finds weights, `skeleton` builds the model without any (on the meta device), `recorder` runs it once on fake
tensors and writes down what happens as a `graph`, `units` folds that into pieces, `segment` runs some of them,
`blocks` and `heads` say which weights are a head's,
`weights` loads exactly the tensors those need, `start` draws what the source does not have, `export` writes the
trained model in its own standard format.

torch.export and fx.symbolic_trace were set aside: the first fails on three of eleven model families and needs pickle
to travel, the second traces one of eleven. May import: contracts, errors; torch, transformers and peft.
"""
