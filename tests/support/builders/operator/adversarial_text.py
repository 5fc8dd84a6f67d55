"""Text that a component between job file and trainer might expand, quote, truncate or re-encode."""

import json

CONTROL = "".join(map(chr, range(32)))
REFERENCES = (
    "$HOME ${HOME} $(HOME) $$HOME $$(HOME) $${HOME} $$$(HOME) $( $) ${ $} $(HOME "
    "${NO_SUCH_VARIABLE} ${NO_SUCH_VARIABLE:-x} $1 $$ $? $ %HOME% %s %(HOME)s {HOME} {{HOME}} `id`"
)
QUOTES = "' \" ''' \"\"\" \\ \\\\ \\n \\u0041 \\' \\\" <!-- & &amp; ; | > < * ? ~ ! # [a] {a,b}"
LETTERS = (
    "äß Ωд שלום 中文 日本語 한국어 🙂👩\u200d🔬🇨🇭 e\u0301 "
    "\u200b\u200f\u202e\u2028\u2029\ufeff\ufffd \x7f\x85\xa0"
)
ADVERSARIAL_TEXT = "\n".join((REFERENCES, QUOTES, LETTERS, CONTROL))
ADVERSARIAL_JSON = json.dumps({"text": ADVERSARIAL_TEXT}, ensure_ascii=False)
