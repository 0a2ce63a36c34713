"""The commands of `securefed`: they parse options, call the library and print its results."""
