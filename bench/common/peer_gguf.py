"""The default model as GGUF of another kind, so that llama.cpp runs the same weights.

Q8_0 stands beside int8, F32 beside float32. The package that carries the default model has it in 4 bits; those weights,
made whole again, are what every other peer runs too.
"""

from __future__ import annotations

from pathlib import Path

KINDS = ("Q8_0", "F32")


def write(source: Path, target: Path, kind: str) -> Path:
    """Write `source` with its matrices as `kind`, unless it is there; vectors stay float32. Returns `target`."""
    if target.exists():
        return target
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    wanted = GGMLQuantizationType[kind]
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".part")
    writer = GGUFWriter(partial, architecture)
    skipped = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in skipped:
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        data = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if data.ndim > 1:
            writer.add_tensor(tensor.name, quants.quantize(data, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(target)
