// The process of llama.cpp in speed.ts and perplexity.ts: MODEL.gguf THREADS [BATCH f16|f32]. BATCH tokens go through at a
// time (512); f16 or f32 is the format of the KV cache, then without flash attention. Takes a request a line (peers.ts has
// them), answers with a line of JSON. Against a native build of the sources in the npm package node-llama-cpp 3.21.1
// (llama.cpp v0.4.0):
//   npm i -E node-llama-cpp@3.21.1 --ignore-scripts && git clone node_modules/node-llama-cpp/llama/gitRelease.bundle llama.cpp
//   cmake -S llama.cpp -B llama.cpp/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF
//       -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF && cmake --build llama.cpp/build --target llama
//   B=$PWD/llama.cpp/build/bin && g++ -O2 -std=c++17 llama_worker.cpp -Illama.cpp/include -Illama.cpp/ggml/include -L$B
//       -lllama -lggml -lggml-base -Wl,-rpath,$B -Wl,-rpath-link,$B -o llama_worker
// or against the package's own library:
//   B=$PWD/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64 && g++ -O2 -std=c++17 -DLIBRARIES="\"$B\"" llama_worker.cpp
//       -Illama.cpp/include -Illama.cpp/ggml/include -L$B -l:libllama.v0.4.0.so -l:libggml.v0.4.0.so -l:libggml-base.so
//       -Wl,-rpath,$B -Wl,-rpath-link,$B -o llama_worker
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

using Tokens = std::vector<llama_token>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Session {
  llama_context *context;
  int vocabulary;
  size_t batch_size;

  /// Appends tokens; logits of the last alone are computed.
  void append(Tokens tokens) const {
    for (size_t start = 0; start < tokens.size(); start += batch_size) {
      const int count = static_cast<int>(std::min(batch_size, tokens.size() - start));
      if (llama_decode(context, llama_batch_get_one(tokens.data() + start, count)) != 0) std::exit(1);
    }
  }

  llama_token likeliest() const {
    const float *row = llama_get_logits_ith(context, -1);
    return static_cast<llama_token>(std::max_element(row, row + vocabulary) - row);
  }

  /// Mean negative log-likelihood of all tokens but the first.
  double loss(const Tokens &tokens) const {
    const size_t last = tokens.size() - 1;
    double sum = 0;
    for (size_t start = 0; start < last; start += batch_size) {
      const int count = static_cast<int>(std::min(batch_size, last - start));
      llama_batch batch = llama_batch_init(count, 0, 1);
      batch.n_tokens = count;
      for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[start + i];
        batch.pos[i] = static_cast<llama_pos>(start + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
      }
      if (llama_decode(context, batch) != 0) std::exit(1);
      for (int i = 0; i < count; i++) {
        const float *row = llama_get_logits_ith(context, i);
        const float most = *std::max_element(row, row + vocabulary);
        double total = 0;
        for (int t = 0; t < vocabulary; t++) total += std::exp(double(row[t] - most));
        sum += most + std::log(total) - row[tokens[start + i + 1]];
      }
      llama_batch_free(batch);
    }
    return sum / last;
  }
};

Session open(int argc, char **argv) {
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
#ifdef LIBRARIES
  ggml_backend_load_all_from_path(LIBRARIES);
#endif
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  llama_model *model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) std::exit(1);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_batch = params.n_ubatch = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 512;
  params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
  if (argc > 4) {
    params.type_k = params.type_v = std::string(argv[4]) == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  }
  llama_context *context = llama_init_from_model(model, params);
  if (context == nullptr) std::exit(1);
  return {context, llama_vocab_n_tokens(llama_model_get_vocab(model)), params.n_batch};
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  Session session{};
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    int count = 0;
    words >> what;
    if (what == "decode") words >> count;
    Tokens tokens;
    for (llama_token id; words >> id;) tokens.push_back(id);
    if (what != "load") llama_memory_clear(llama_get_memory(session.context), true);
    double start = now(), loss = 0;
    if (what == "load") {
      session = open(argc, argv);
    } else if (what == "prefill") {
      session.append(tokens);
    } else if (what == "decode") {
      session.append(tokens);
      llama_token token = session.likeliest();
      start = now();
      for (int i = 0; i < count; i++) {
        session.append({token});
        token = session.likeliest();
      }
    } else if (what == "loss") {
      loss = session.loss(tokens);
    } else {
      return 2;
    }
    std::printf("{\"seconds\": %.6f, \"loss\": %.6f}\n", now() - start, loss);
    std::fflush(stdout);
  }
  std::_Exit(0);
}
