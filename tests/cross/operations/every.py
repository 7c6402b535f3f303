"""Every operation of every wire format with its required permission, in one module a format.

tests/cross/test_permissions.py tests all of `FORMS`. A format is a `Form` with its `Operation`s. A
new operation is a line in the format's module and a line in the page.
"""

from __future__ import annotations

from tests.cross.operations import blipmq, flymq, mamamia, mega, rustlog
from tests.cross.operations.form import Form

FORMS: dict[str, Form] = {
    form.name: form
    for form in (mamamia.FORM, flymq.FORM, blipmq.FORM, rustlog.BINARY, rustlog.JSON, mega.FORM)
}
