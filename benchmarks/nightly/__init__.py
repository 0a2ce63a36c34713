"""`make nightly`: fresh schedules and cases, mutants, fuzzers, soaks with random kills."""
