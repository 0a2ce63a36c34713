"""The demonstration that `make flower-demo` starts: one Flower app, plain and secured, side by side."""
