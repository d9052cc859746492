"""nanoscope trains small GPTs on the machine you have, and makes every number of the training understood."""
