"""The parts of a repro script that are the same in each: reading its tensors, running a side, comparing a row."""

from __future__ import annotations

LOADER = """
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
KEPT = []


def load():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tensors.safetensors")
    data = open(path, "rb").read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        print("cannot run: tensors.safetensors is not the file this script was written for", file=sys.stderr)
        sys.exit(2)
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[start:end]), dtype=dtype) if end > start else torch.empty(0, dtype=dtype)
        found[name] = filled(name, flat.reshape(entry["shape"]))
    if GPU and not torch.cuda.is_available():
        print("cannot run: recorded on a GPU, and there is none", file=sys.stderr)
        sys.exit(2)
    made = {name: prepared(name, tensor) for name, tensor in found.items()}
    return made | {name: prepared(name, found[other].reshape(shape)) for name, (other, shape) in SAME.items()}


def filled(name, part):
    # Rows of zeros are not stored.
    if name not in GAPS:
        return part
    shape, places = GAPS[name]
    rows, at = torch.zeros(torch.Size(shape).numel() // shape[-1], shape[-1], dtype=part.dtype), 0
    for start, end in places:
        rows[start:end] = part[at : at + end - start]
        at += end - start
    return rows.reshape(shape)


def prepared(name, tensor):
    if name in GPU:
        tensor = tensor.cuda()
    if name in STRIDES:
        empty = torch.empty_strided(tensor.shape, STRIDES[name], dtype=tensor.dtype, device=tensor.device)
        tensor = empty.copy_(tensor)
    if name in HANDLERS:
        # oneDNN keeps a packed weight behind a number.
        KEPT.append(ops.create_onednn_mm(tensor.t(), 32))
        return KEPT[-1].handler_tensor
    return tensor.clone() if name not in STRIDES else tensor"""

KERNEL = """

def kernel(name):
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    while hasattr(found.fn, "fn"):  # below an autotuner: launched as it ran
        found = found.fn
    return found"""

ROW = """

def row(tensor, count, number):
    whole = tensor.shape[0] == count or tensor.ndim > 2
    flat = (tensor if whole else tensor[:count]).reshape(count, -1)
    return flat[number].detach().contiguous().cpu()"""

ROWS = """

def rows():
    tensors = load()
    with torch.no_grad():
        return row(side_a(tensors), ROWS_A, ROW_A), row(side_b(tensors), ROWS_B, ROW_B)"""

ROWS_APART = """

def rows():
    if SIDE is not None:
        sys.exit(one_side(SIDE, sys.argv[2]))
    return of_side("a"), of_side("b")


def of_side(side):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "row")
        done = subprocess.run([sys.executable, os.path.abspath(__file__), side, path])
        if done.returncode:
            raise RuntimeError(f"side {side} ended with {done.returncode}")
        return torch.load(path)


def one_side(side, path):
    tensors = load()
    with torch.no_grad():
        made = row(side_a(tensors), ROWS_A, ROW_A) if side == "a" else row(side_b(tensors), ROWS_B, ROW_B)
    torch.save(made, path)
    return 0"""

MAIN = """

def main():
    a, b = rows()
    if a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
        print(f"equal to the last bit: {a.numel()} values")
        return 0
    if a.shape != b.shape:
        print(f"different shapes: {list(a.shape)} and {list(b.shape)}")
        return 1
    left, right = a.to(torch.float64), b.to(torch.float64)
    apart = float((left - right).abs().max())
    print(f"different: {int((left != right).sum())} of {a.numel()} values as numbers, largest difference {apart:.3g}")
    return 1


if __name__ == "__main__":
    try:
        code = main()
    except Exception as error:
        print(f"cannot run: {type(error).__name__}: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)"""
