"""What a kernel matrix says and does: spectra, distances, flows, regression."""
