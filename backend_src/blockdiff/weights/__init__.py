"""Weight files as files: headers, manifest, verification. Knows no tensors' values and no torch."""
