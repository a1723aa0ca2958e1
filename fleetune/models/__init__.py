"""A Hugging Face model, with or without PEFT adapters, as an ordered list of named units that run anywhere.

`source` finds configuration and weights, `skeleton` builds the model on the meta device, `recorder` runs it once on
fake tensors and keeps its `operations` as a `graph`, `unit_graph` folds that into `units`, `experts` runs mixtures of
experts, `segment` runs some units, `weights` reads exactly the tensors that they need, `init_weights` draws those that
the source lacks, `export` writes the trained model in its own standard format, `attention_heads` finds the weights of
each head.

torch.export and fx.symbolic_trace were rejected: the first fails on three of eleven model families and needs pickle
to travel, the second traces one of eleven.
"""
