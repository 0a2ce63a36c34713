"""Draw random numbers exactly: uniform bits, discrete distributions, and normal deviates rounded to a grid."""
