"""A stand-in accelerator for machines that have none, into which faults can be put."""
