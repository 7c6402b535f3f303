"""Every operation of every wire format, and what it needs: one module for each format.

`FORMS` is what tests/cross/test_permissions.py goes through. A format is a `Form` with its
`Operation`s; a new operation is a line in the format's module, which the page must have too.
"""

from __future__ import annotations

from tests.cross.operations import blipmq, flymq, mamamia, mega, rustlog
from tests.cross.operations.form import Form

FORMS: dict[str, Form] = {
    form.name: form
    for form in (mamamia.FORM, flymq.FORM, blipmq.FORM, rustlog.BINARY, rustlog.JSON, mega.FORM)
}
