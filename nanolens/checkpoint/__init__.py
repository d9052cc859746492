"""Checkpoints: a folder each, written whole, checksummed, verified before it is believed, and free of pickle.

model.safetensors       weights by name
optimizer.safetensors   the optimizer's tensors, the gradient scaler's and the random generators'
state.json              step, data cursor, best loss, the run's config and choices: all else that resuming needs
tokenizer…              what turns ids into text
manifest.json           size and sha256 of each of these
"""

from nanolens.checkpoint.load import Checkpoint, Refused, load, newest_good, verify, weights_of
from nanolens.checkpoint.save import Snapshot, delete, save, tensors_of

__all__ = ["Checkpoint", "Refused", "Snapshot", "delete", "load", "newest_good", "save", "tensors_of", "verify", "weights_of"]
