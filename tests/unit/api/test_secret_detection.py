"""Secrets are recognized by value and by name, and ordinary values are accepted."""

import base64
import json
from typing import Any

import pytest

from raggrpo_api.secrets.detection import has_secret, is_secret_pair, secret_texts

SHA = "3f786850e387550fdab836ed7e6dc881de23001b"
SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
UUID = "123e4567-e89b-12d3-a456-426614174000"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ORDINARY = (
    # Models and their paths
    "/models/Qwen/Qwen2.5-7B-Instruct", "/mnt/models/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4",
    "/mnt/models/DeepSeek-R1-Distill-Qwen-1.5B", "/mnt/models/Meta-Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "google/gemma-2-9b-it", "BAAI/bge-large-en-v1.5", "intfloat/e5-mistral-7b-instruct",
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", "Qwen/Qwen3-Embedding-0.6B",
    "facebook/dpr-question_encoder-single-nq-base", "microsoft/Phi-3.5-mini-instruct",
    "HuggingFaceTB/SmolLM2-135M-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "openai/gpt-oss-20b", "01-ai/Yi-1.5-34B-Chat-16K", "THUDM/glm-4-9b-chat-1m",
    "/mnt/models/nvidia/Llama-3_1-Nemotron-51B-Instruct", "internlm/internlm2_5-20b-chat",
    "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/" + SHA,
    "/mnt/runs/checkpoints/step_000100/policy/model-00001-of-00004.safetensors",
    # Revisions, digests and ids
    SHA, SHA[:7], SHA[:12], "v0.6.3-14-g" + SHA, "main@" + SHA, SHA256, SHA256.upper(),
    "sha256:" + SHA256, "img.example.com/trainer@sha256:" + SHA256, "md5:" + SHA[:32], SHA[:32],
    "registry.example.com:5000/team/trainer:2026.11.27-cuda12.4-py311", UUID, UUID.upper(),
    "{" + UUID + "}", "urn:uuid:" + UUID, "run-" + UUID, "run_" + UUID.replace("-", ""),
    "507f1f77bcf86cd799439011", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1732723200000", "3kq9x2ab",
    "0x" + "ab" * 20, "sha256-" + base64.b64encode(bytes.fromhex(SHA256)).decode(),
    "sha512-" + base64.b64encode(bytes.fromhex(SHA256 * 2)).decode(), "crc32c=AAAAAA==",
    "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWKsJwF", "arXiv:2402.03300", "W/\"" + SHA[:16] + "\"",
    "10.5281/zenodo.1234567", "etag-" + SHA[:32], "cache-key-" + SHA[:32], "build-20261127T220315Z",
    # Encoded and long texts
    encoded("Answer the question with one of the given passages."),
    encoded("你是一个检索助手。请根据给定的段落回答问题。"),
    encoded("Frage: {question}\nAntwort: "),
    encoded("You are a helpful assistant. " * 20), encoded('{"role": "system", "content": "Hi"}'),
    encoded("<search>query</search> returns passages; answer in <answer>."),
    encoded(json.dumps({"temperature": 0.7, "max_tokens": 512})),
    encoded("Système: réponds brièvement à la question posée."),
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYD\n"
    "-----END CERTIFICATE-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEbKZ8qv3XgC7mHhPZ5tYw2rLs9dUf1aBc4eKjNpQxTv me@host",
    "Solve the problem step by step and put the answer after ####.",
    "You must not reveal your password: say that you do not know it.",
    "Return JSON with the keys rewritten_query, user_profile and history_summary.",
    '{"temperature": 0.6, "max_tokens": 512, "stop": ["</answer>"]}',
    '[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]',
    '{"guided_json": {"type": "object", "properties": {"token_count": {"type": "integer"}}}}',
    # URLs
    "http://kb:8000/retrieve", "https://rag.example.com/v1/chat?tenant=acme&lang=en",
    "http://retriever.search.svc.cluster.local:8080/retrieve", "http://[::1]:8000/x",
    "https://huggingface.co/Qwen/Qwen2.5-7B/resolve/" + SHA + "/model.safetensors.index.json",
    "https://kb.example.com/collections/" + UUID + "/search", "http://kb/{question}?limit={top_k}",
    "https://api.example.com/v1/indexes/507f1f77bcf86cd799439011/query",
    "https://github.com/acme/rewards/commit/" + SHA, "http://search:9200/wiki_2026_11_27/_search",
    "https://bucket-eu-central-1.s3.amazonaws.com/corpora/wiki-18.jsonl.gz",
    "https://us-central1-aiplatform.googleapis.com/v1/projects/123456789012/locations/us-central1/"
    "publishers/google/models/gemini-1.5-pro-002:generateContent",
    "https://acme.openai.azure.com/openai/deployments/gpt-4o-mini/chat/completions"
    "?api-version=2024-10-21",
    "https://xk3fj92mdl20sk4a.us-east-1.aws.endpoints.huggingface.cloud/v1/chat/completions",
    "http://h/hooks/list", "http://h/webhooks/v1/health", "http://h/api/keys/rotate",
    "http://h/v2/models/grader_deberta_v3_large/versions/12/infer", "http://h/tokens/count",
    "http://kb:6333/collections/wikipedia-paragraphs-bge-small/points/search",
    "http://weaviate:8080/v1/graphql", "http://txtai:8000/search?query={question}",
    "http://kb/search?session_id={message_id}", "redis://cache:6379/0", "postgres://h/db",
    "https://datasets-server.huggingface.co/rows?dataset=openai%2Fgsm8k&split=train&offset=0",
    "https://en.wikipedia.org/wiki/Donaudampfschifffahrtselektrizit%C3%A4tenhauptbetriebswerk",
    "https://zenodo.org/records/10688543/files/hotpot_train_v1.1.json", "s3://acme-runs/a/b",
    "gs://acme-corpora/wiki18/2026-11-27/part-00042-of-00128.parquet", "tcp://10.0.0.7:29500",
    # Data sets and files
    "hotpot_dev_distractor_v1.jsonl", "RUC-NLPIR/FlashRAG_datasets", "openai/gsm8k",
    "PeterJinGo/nq_hotpotqa_train", "2WikiMultihopQA", "MuSiQue-Ans_v1.0_train.jsonl",
    "psgs_w100.tsv.gz", "wiki-18-corpus-bm25-index-shard-00003-of-00016",
    "math-ai/MATH-500", "AI-MO/NuminaMath-CoT", "BytedTsinghua-SIA/DAPO-Math-17k",
    "/data/2026/11/27/export_of_all_support_tickets_in_german_and_english_v12_final.parquet",
    "/mnt/data/TriviaQA-unfiltered-web-train.jsonl",
    "train-00000-of-00001-b42a775f407cee45.parquet",
    "events.out.tfevents.1732723200.worker-0.1234.0", "nsys_profile_rank0_step000120.qdrep",
    "grpo_qwen2.5_7b_bf16_lr1e-6_kl0.001_n8_bs128_ckpt_000100",
    "Qwen2.5-7B-GRPO-lr1e-6-beta0.04-eps0.2-n16-seed1234-2026-11-27T22-03-15",
    "ThisIsAVeryLongCamelCaseNameOfAnExperimentWithoutSeparators",
    "EXPERIMENT_NAME_IN_UPPER_CASE_WITH_MANY_WORDS_2026",
    "/opt/raggrpo/lib/python3.11/site-packages/torch/lib/libtorch_cuda_linalg.so",
    # Settings
    "expandable_segments:True,max_split_size_mb:512", "INIT,NET,GRAPH", "eth0,ens5", "^lo,docker0",
    "max_new_tokens=1024", "--max-num-batched-tokens=8192", "-Xmx16g -XX:+UseG1GC",
    "kill-rank@step=7", "TF32", "en_US.UTF-8", "SG.UTF-8", "Europe/Berlin", "0,1,2,3,4,5,6,7",
    "GPU-8f6d7c3a-1b2c-4d5e-8f90-a1b2c3d4e5f6", "mlx5_0:1,mlx5_1:1", "1e-06", "true", "", " ",
    "/usr/local/nvidia/lib64:/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu",
    "http://proxy.example.com:3128", "localhost,127.0.0.1,.svc,.cluster.local,10.0.0.0/8",
    "team-a@example.com", "Ada Lovelace <ada@example.com>", "2026-11-27T22:03:15.123456+00:00",
    "task-specific-training-of-large-models", "disk-usage-of-checkpoint-folders",
    "sk-learn-random-forest-classifier", "mask-token-prediction-objective", "pypi-mirror-of-team-a",
    "abcdefghijklmnopqrstuvwxyz0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "=" * 40, "x" * 64,
    "<|im_start|>assistant<|im_end|>", "{{ messages[-1].content }}", "Donaudampfschifffahrt",
    "zhonghuarenmingongheguo", "RequireObjectCoercible", "internationalization-and-localization",
    "PYTORCH_CUDA_ALLOC_CONF", "NCCL_IB_HCA=mlx5", "worker-group-0-small-7d9c6b5f4-x2x9z",
    "small-head-svc.team-a.svc.cluster.local", "cuda12.4.1-cudnn9-devel-ubuntu22.04",
)  # fmt: skip

MORE_ORDINARY = r"""
arn:aws:iam::123456789012:role/raggrpo-trainer
ip-10-0-0-1.eu-west-1.compute.internal
8.0;8.6;9.0+PTX
--xla_gpu_enable_latency_hiding_scheduler=true
service.name=trainer,deployment.environment=production,service.version=2026.11
ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null
MIG-8f6d7c3a-1b2c-4d5e-8f90-a1b2c3d4e5f6
FLASH_ATTN_VLLM_V1
raysubmit_7Kc9uQbVbJpNVqDR
https://api.example.com/v1/assistants/asst_q7Zt2Lk9Xw4Vb8Nc1Rm5Hj3P/search
/nix/store/q7zt2lk9xw4vb8nc1rm5hj3pd6gs0fy1-python3-3.11.7
h1:q7Zt2Lk9Xw4Vb8Nc1Rm5Hj3Pd6Gs0Fyq7Zt2Lk9Xw4V=
md5:XrY7u+Ae7tCTyyK7j1rNww==
com.example.search.RetrieverServiceImplV2
images.example.com/nvidia/pytorch:24.10-py3
images.example.com/kuberay/operator:v1.4.2
openai/clip-vit-large-patch14-336
laion/CLIP-ViT-bigG-14-laion2B-39B-b160k
timm/vit_base_patch16_clip_224.openai_ft_in12k_in1k
google/siglip-so400m-patch14-384
facebook/wav2vec2-large-xlsr-53
EleutherAI/pythia-1.4b-deduped-v0
bigscience/bloomz-7b1-mt
stabilityai/stable-diffusion-xl-base-1.0
TheBloke/Llama-2-70B-Chat-GGUF/llama-2-70b-chat.Q4_K_M.gguf
bartowski/Qwen2.5-7B-Instruct-GGUF-IQ4_XS
unsloth/Qwen2.5-7B-Instruct-bnb-4bit
cross-encoder/ms-marco-MiniLM-L-6-v2
NousResearch/Hermes-3-Llama-3.1-405B-FP8
deepseek-ai/DeepSeek-R1-0528-Qwen3-8B
Alibaba-NLP/gte-Qwen2-1.5B-instruct
WhereIsAI/UAE-Large-V1
mixedbread-ai/mxbai-embed-xlarge-v1
jinaai/jina-embeddings-v3
nomic-ai/nomic-embed-text-v1.5
Snowflake/snowflake-arctic-embed-l-v2.0
HuggingFaceH4/ultrafeedback_binarized
allenai/tulu-3-sft-mixture
Skywork/Skywork-Reward-Preference-80K-v0.2
open-r1/OpenR1-Math-220k
Jiayi-Pan/Countdown-Tasks-3to4
lmsys/lmsys-chat-1m
wikimedia/wikipedia/20231101.en
BeIR/msmarco-v2.1-segmented
MuSiQue_Ans_v1.0_dev_4hop1__123456_789012
5ae0d91e55429924de1b7107
job-2026-11-27-grpo-7b-seed42-attempt003-worker0007
W&B run proud-sunset-1234
Team Search <search@example.com>
https://search.example.com/api/as/v1/engines/national-parks-demo/search.json
http://milvus:19530/v2/vectordb/entities/search
http://vespa:8080/search/?yql=select+*+from+passage+where+userQuery()&hits=10
http://solr:8983/solr/wikipedia/select?q={question}&rows={top_k}&wt=json&defType=edismax
https://api.semanticscholar.org/graph/v1/paper/649def34f8be52c8b66281af98ae884c09aef38b
https://openreview.net/forum?id=H1lZZ2C9Km
https://www.youtube.com/watch?v=dQw4w9WgXcQ
https://zenodo.org/api/records/7773716/files-archive
x-goog-api-client: gl-python/3.11 grpc/1.66
application/json; charset=utf-8
text/event-stream
rewritten_query,user_profile,history_summary
/data/Quartalsbericht_Konzernabschluss_2025_Endfassung_ueberarbeitet_v3_final.docx
/data/Überweisungsbestätigungen/2026/Jänner.parquet
训练数据集_第一批_问答对_20261127.jsonl
dt=20261127/hour=22/run_id=scheduled__2026-11-27T22:00:00+00:00
LoraConfig(r=16,lora_alpha=32,target_modules=all-linear)
ZeRO-3-offload-bf16-flashattn2-gradckpt
A100-SXM4-80GB
NVIDIA-H100-80GB-HBM3-MIG-1g.10gb
cpu=16000m,memory=64Gi,nvidia.com/gpu=8
Qwen2TokenizerFast
AutoModelForSequenceClassification
Qwen2_5_VLForConditionalGeneration
DistributedDataParallelKwargsHandler
LlamaForCausalLMWithValueHead
torch.nn.parallel.DistributedDataParallel
XMLHttpRequest
PYTHONDONTWRITEBYTECODE
JSONSchemaDraft202012Validator
HTTPSConnectionPool
ISO8601DateTimeFormatter
sha1sum_of_corpus
base64EncodedPrompt
utf8mb4_unicode_ci
H264VideoEncoderBaseline
0123456789abcdef0123456789abcdef
Rindfleischetikettierungsueberwachungsaufgabenuebertragungsgesetz
pneumonoultramicroscopicsilicovolcanoconiosis
Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogoch
Szczebrzeszyn
arbeiderspartij
przedsiebiorstwo
Wszystkiego najlepszego
yy-MM-dd_HH-mm-ss.SSSSSS
%Y-%m-%dT%H:%M:%S.%fZ
^(?:[A-Za-z0-9+/]{4})*$
{"filter":{"must":[{"key":"lang","match":{"value":"en"}}]}}
{"sort_key":"date","partition_key":"lang"}
"""
"""One ordinary value per line."""

RANDOM = "q7Zt2Lk9Xw4Vb8Nc1Rm5Hj3Pd6Gs0Fy"
TOKENS = (
    "hf_" + "aB3" * 11, "sk-" + "aB3d" * 12, "sk-proj-" + "aB3d_" * 8 + "aB3d" * 8,
    "gsk_" + "aB3d" * 13,
    "sk-ant-api03-" + RANDOM * 3, "sk-or-v1-" + SHA256, "r8_" + "aB3d" * 9, "xai-" + "aB3d" * 20,
    "pplx-" + "aB3d" * 12, "jina_" + SHA, "AIza" + "aB3d" * 9, "ya29." + "aB3d" * 9,
    "AKIA" + "A1B2" * 4, "ASIA" + "A1B2" * 4, "LTAI" + "aB3d" * 5, "AKID" + "aB3d" * 8,
    "ghp_" + "aB3d" * 9, "github_pat_" + "aB3d" * 9, "glpat-" + "aB3d" * 5, "npm_" + "aB3d" * 9,
    "pypi-AgEIcHlwaS5vcmc" + "aB3d" * 9, "dckr_pat_" + "aB3d" * 6, "dop_v1_" + SHA256,
    "xoxb-123456789012-" + "aB3d" * 6, "xapp-1-A1", "SG." + "aB3d" * 5 + "." + "aB3d" * 9,
    "sk_live_" + "aB3d" * 6, "rk_test_" + "aB3d" * 6, "whsec_" + "aB3d" * 8, "shpat_" + SHA[:32],
    "dapi" + SHA[:32], "hvs." + "aB3d" * 6, "pcsk_" + "aB3d" * 9, "tvly-" + "aB3d" * 8,
    "nvapi-" + "aB3d" * 16, "lsv2_pt_" + SHA[:32], "ntn_" + "aB3d" * 10, "ATATT3xFf" + "aB3d" * 9,
    "GOCSPX-" + "aB3d" * 7, "rpa_" + "A1B2" * 9, "wandb_v1_" + "aB3d" * 9, "SK" + SHA[:32],
    "1234567890:AA" + "aB3d" * 8 + "a", "PMAK-" + SHA[:24], "AGE-SECRET-KEY-1" + "A1B2" * 9,
    "IQoJb3JpZ2luX2Vj" + "aB3d" * 50, "tskey-auth-aB3d", "sntrys_" + "aB3d" * 9,
)  # fmt: skip
KUBECONFIG = "apiVersion: v1\nkind: Config\nusers:\n- user:\n    token: " + RANDOM
KEY_FILE = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
SERVICE_ACCOUNT = json.dumps({"type": "service_account", "private_key_id": "ab", "client_id": "1"})
PARTS = ('{"alg":"HS256"}', '{"sub":"1","name":"Ada"}')
JWT = ".".join([*(encoded(part).rstrip("=") for part in PARTS), RANDOM])
DISGUISED = (
    JWT, "Bearer " + RANDOM, "prefix " + JWT, KEY_FILE, encoded(KEY_FILE),
    encoded(encoded(KEY_FILE)),
    KEY_FILE.replace("RSA", "OPENSSH"), "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" + "aB3d" * 9, KUBECONFIG,
    encoded(KUBECONFIG), SERVICE_ACCOUNT, encoded(SERVICE_ACCOUNT), encoded("ada:correct-horse"),
    encoded("ada:correct/horse@battery"),
    '{"auths": {"images.example.com": {"auth": "' + encoded("ada:horse-battery") + '"}}}',
    '{"db": {"password": "horse"}}', '[{"api_key": "a"}]', '"x" --password=horse',
    "HF_TOKEN=correcthorse raggrpo run", "client-key-data: " + "LS0t" * 9,
    "export OPENAI_API_KEY=correcthorse", "aws_secret_access_key = correcthorse",
    "ldap://cn=admin:horse@dc", "https://h/x;jsessionid=A1B2C3", "ftp://ada:horse@h/x",
    "https://maker.ifttt.com/trigger/x/with/key/A1b2C3", "https://a.blob.core.windows.net/c?sig=a",
    "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=horse",
    "https://open.feishu.cn/open-apis/bot/v2/hook/" + UUID,
    # Credentials in URLs
    "postgres://ada:horse@db/x", "postgresql+asyncpg://ada:ho?rse@db/x", "redis://:horse@cache:6379",
    "mongodb+srv://ada:horse@c.example.net/?w=1", "https://ada:horse@kb/retrieve",
    "https://ghp@git.example.com/x", "amqp://ada:horse@mq//", "ada:horse@proxy:3128",
    "jdbc:postgresql://db/x?user=ada&password=horse", "Server=db;User Id=ada;Pwd=horse",
    "http://kb/?token=horse", "http://kb/?api%5Fkey=horse", "http://kb/#access_token=horse",
    "http://kb/?session_id=horse", "http://kb/?a=1&X-Amz-Signature=" + SHA256,
    "https://h/hooks/SECRET", "https://h/hooks/s3cr3tvalue", "https://h/api/webhooks/12/" + RANDOM,
    "curl -u ada:horse https://h/x", "curl --user=ada:horse h",
    "machine h login ada password horse",
    "https://h/hooks/correcthorsebatterystaple", "https://h/webhook-test/A1b2C3",
    "https://h/%68ooks/s3cr3tvalue", "https://h/hooks/s3cr3t%76alue", "https://h/webhook/" + UUID,
    "https://hooks.slack.com/services/T0/B0/" + RANDOM[:24], "https://h/score/" + RANDOM,
    "https://discord.com/api/webhooks/1/" + RANDOM, "https://h/x/" + RANDOM[:20] + "/score",
    "https://h/trigger/tok_" + RANDOM, "https://h/key/s3cr3tvalue", "https://h/token/aB3dE5",
    "https://api.telegram.org/bot123456789:AA" + "aB3d" * 8 + "a/sendMessage",
    # Keys of unknown providers
    RANDOM, RANDOM[:20], "key " + RANDOM, "acme_" + RANDOM, "acme-live-" + RANDOM, "x=" + RANDOM,
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzRb4cDeFgH", "a8f5xk2m9qw3zt7v1bn6hj4p",
    "JBSWY3DPEHPK3PXPQ2ZX7VKN",
    "Zm9vYmFy8kQ2x+7Lp0VtYw3HsJ/R9dKc5NbGqXe1UoI=", "Xk9$mP2!vL7#qR4z", "Winter2026!Horse",
    "dGhpcyBpcyBu/3QgYXNjaWk5vQz8Wk1Lx7YtRb2MhPcJq0==", "gAAAAABnQ3x7LpVtYw3HsJR9dKc5NbGqXe1UoI",
    "MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs", "v1.0-" + RANDOM + RANDOM,
)  # fmt: skip


def test_example_sets_have_required_sizes() -> None:
    assert len(set(ORDINARY)) >= 150
    assert len(set(TOKENS) | set(DISGUISED)) >= 80


@pytest.mark.row("E11")
@pytest.mark.parametrize("value", [*ORDINARY, *MORE_ORDINARY.split("\n")])
def test_ordinary_values_are_accepted(value: str) -> None:
    assert not has_secret(value)


@pytest.mark.row("E11")
@pytest.mark.parametrize("value", [*TOKENS, *DISGUISED])
def test_secrets_are_recognized_by_value(value: str) -> None:
    assert has_secret(value)


@pytest.mark.parametrize("value", TOKENS)
def test_tokens_are_recognized_within_text(value: str) -> None:
    assert has_secret(f"use {value} here")
    assert has_secret(f"(token:{value})")


@pytest.mark.parametrize(
    ("body", "path", "name"),
    [
        ({"DATABASE_URL": "x"}, "body.DATABASE_URL", "DATABASE_URL"),
        ({"a": {"BEARER": ["x"]}}, "body.a.BEARER[0]", "BEARER"),
        ({"session_id": 12}, "body.session_id", "session_id"),
        ({"openaiKey": "x"}, "body.openaiKey", "openaiKey"),
        ({"secrets": {"a": [{"b": "x"}]}}, "body.secrets.a[0].b", "secrets"),
        ([{"name": "Authorization", "value": "x"}], "body[0].value", "Authorization"),
        ({"a": RANDOM}, "body.a", "a"),
        ({"hf_" + "a" * 30: 1}, "body", ""),
        ({"a": [["x", encoded(KUBECONFIG)]]}, "body.a[0][1]", "a"),
    ],
)
def test_secrets_in_json_are_reported_with_their_place(body: Any, path: str, name: str) -> None:
    assert [(each.path, each.name) for each in secret_texts(body, "body")] == [(path, name)]


def test_names_that_are_secrets_are_not_repeated_in_findings() -> None:
    body = {"hf_" + "a" * 30: {"password": "x", "b": RANDOM}}
    findings = list(secret_texts(body, "body"))
    paths = ["body", "body.(hidden).password", "body.(hidden).b"]
    assert [each.path for each in findings] == paths
    assert "hf_" not in str(findings)


def test_placeholders_of_secret_names_are_accepted() -> None:
    body = {"session_id": "{message_id}", "token": "", "credentials": None, "cookie": True}
    assert list(secret_texts(body, "body")) == []
    assert is_secret_pair("session_id", "{message_id}-1")
