"""List the names of the fields of a PDF form that stores them as plain text."""

import re
import sys
from pathlib import Path

for name in re.findall(rb"/T\s*\(([^()]*)\)", Path(sys.argv[1]).read_bytes()):
    print(name.decode("latin-1"))
