"""Cut a small model out of a checkpoint: census, plan, cut, proof. Never imports torch."""
