"""`make nightly`: fresh schedules and cases, mutants of the package, soaks with random kills."""
