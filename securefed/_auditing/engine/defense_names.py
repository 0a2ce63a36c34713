"""Names of the defences that an audit can run, as registries and reports have them."""

PLAIN, SECURE_AGGREGATION, PAILLIER, DP, DDP = "plain", "secure_aggregation", "paillier", "dp", "ddp"
QUANTISE, PAILLIER_THRESHOLD, CKKS = "quantise", "paillier_threshold", "ckks"
