"""Tokenizers that transformers implements in Python, and not with the tokenizers library.

They ignore tokenizer.json and read other files of the folder. transformers takes seconds to import,
so the names are listed here.
"""

CLASSES = frozenset(
    """
    BartphoTokenizer BertGenerationTokenizer BertJapaneseTokenizer BertweetTokenizer
    BioGptTokenizer BlenderbotSmallTokenizer ByT5Tokenizer CTRLTokenizer CanineTokenizer
    ClvpTokenizer CpmAntTokenizer CpmTokenizer DiaTokenizer EsmTokenizer FSMTTokenizer
    FlaubertTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer M2M100Tokenizer
    MarianTokenizer MgpstrTokenizer MistralCommonBackend MyT5Tokenizer PLBartTokenizer
    PerceiverTokenizer PhobertTokenizer ProphetNetTokenizer RagTokenizer RoCBertTokenizer
    SiglipTokenizer Speech2TextTokenizer SpeechT5Tokenizer TapasTokenizer VitsTokenizer
    Wav2Vec2CTCTokenizer Wav2Vec2PhonemeCTCTokenizer XLMTokenizer
    """.split()  # noqa: SIM905 - a literal has a line for each name
)
"""Names of the classes."""
MODEL_TYPES = frozenset(
    """
    bartpho bert-generation bert-japanese bertweet biogpt blenderbot-small byt5 canine
    clvp cpm cpmant ctrl data2vec-audio dia esm flaubert fsmt gpt-sw3 gpt_neox_japanese
    hubert m2m_100 marian mgp-str ministral ministral3 mistral mistral3 mixtral myt5
    perceiver phobert pixtral plbart prophetnet rag roc_bert siglip speech_to_text
    speecht5 tapas unispeech unispeech-sat vits voxtral voxtral_realtime wav2vec2
    wav2vec2-bert wav2vec2-conformer wav2vec2_phoneme xlm
    """.split()  # noqa: SIM905 - a literal has a line for each name
)
"""Values of `model_type` in config.json for which transformers selects one of them."""
