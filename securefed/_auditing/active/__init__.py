"""Run federations whose server chooses its broadcasts, and measure what it reads and what stops it."""
