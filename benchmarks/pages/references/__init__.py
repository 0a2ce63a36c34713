"""The reference figures of the attacks, beside ours: what is measured, how it is judged, and the page."""
