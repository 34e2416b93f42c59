"""The properties and uses of a kernel matrix: spectra, distances, flows, regression."""
