"""Write states and files to disk: packing of dataclasses, the file container, encryption at rest."""
