"""Making an MTP drafter from nothing but its target: text, training, evaluation."""
