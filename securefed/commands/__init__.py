"""The commands of `securefed`, each a thin door to the library."""
