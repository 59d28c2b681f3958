"""What the benchmarks share: processes that are measured, load, tables and plots in the pages."""
