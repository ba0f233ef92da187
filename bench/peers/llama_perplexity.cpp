// The perplexity that llama.cpp gives a list of token ids, for `perplexity.ts`. Against the library in the npm package
// node-llama-cpp 3.21.1 (llama.cpp v0.4.0) and the headers of the sources that lie in it:
//   npm i -E node-llama-cpp@3.21.1 --ignore-scripts && git clone node_modules/node-llama-cpp/llama/gitRelease.bundle llama.cpp
//   B=$PWD/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
//   g++ -O2 -std=c++17 -DLIBRARIES="\"$B\"" llama_perplexity.cpp -Illama.cpp/include -Illama.cpp/ggml/include -L$B
//       -l:libllama.v0.4.0.so -l:libggml.v0.4.0.so -l:libggml-base.so -Wl,-rpath,$B -Wl,-rpath-link,$B -o llama_perplexity
//   ./llama_perplexity MODEL.gguf BATCH f16|f32 < IDS
// IDS are numbers separated by anything else, BOS included; all tokens but the first count. BATCH tokens go through at a
// time; f16 or f32 is the format of the KV cache. Prints one line of JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int batch_size = std::atoi(argv[2]);
  std::vector<llama_token> ids;
  for (int c = getchar(), digits = 0, value = 0; ; c = getchar()) {
    if (c >= '0' && c <= '9') value = 10 * value + c - '0', digits++;
    else if (digits) ids.push_back(value), digits = value = 0;
    if (c == EOF) break;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  ggml_backend_load_all_from_path(LIBRARIES);
  llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(ids.size()) + 64;
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(batch_size);
  params.n_threads = params.n_threads_batch = 2;
  params.type_k = params.type_v = std::string(argv[3]) == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context *context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  double sum = 0;
  const size_t last = ids.size() - 1;
  for (size_t start = 0; start < last; start += batch_size) {
    const int count = static_cast<int>(std::min<size_t>(batch_size, last - start));
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
      batch.token[i] = ids[start + i];
      batch.pos[i] = static_cast<llama_pos>(start + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) return 1;
    for (int i = 0; i < count; i++) {
      const float *row = llama_get_logits_ith(context, i);
      const float most = *std::max_element(row, row + vocabulary);
      double total = 0;
      for (int t = 0; t < vocabulary; t++) total += std::exp(double(row[t] - most));
      sum += most + std::log(total) - row[ids[start + i + 1]];
    }
    llama_batch_free(batch);
  }
  const double nll = sum / last;
  printf("{\"tokens\": %zu, \"batch\": %d, \"kv\": \"%s\", \"nll\": %.6f, \"perplexity\": %.4f}\n", ids.size(), batch_size, argv[3], nll,
         std::exp(nll));
}
