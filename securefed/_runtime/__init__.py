"""Make the sums of a run at server and clients, and run a federation as a loop over sums."""
